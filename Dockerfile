# Kickstand. Copies what `make build` made, so that docker and buildah build the same image, and no network is needed.
FROM scratch
# Not at /kickstand: a step may use this image, and the gate's volume is mounted there in a step.
COPY dist/kickstand /usr/local/bin/kickstand
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/kickstand"]
LABEL org.opencontainers.image.title="kickstand" \
      org.opencontainers.image.description="Holds a Tekton TaskRun's first step until every sidecar is ready, and stops the sidecars when the last step is done" \
      org.opencontainers.image.licenses="Apache-2.0"
