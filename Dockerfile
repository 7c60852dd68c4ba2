# Kickstand. Copies what `make build` made, so that docker and buildah build the same image, and no network is needed.
FROM scratch
COPY dist/kickstand /kickstand
USER 65532:65532
ENTRYPOINT ["/kickstand"]
LABEL org.opencontainers.image.title="kickstand" \
      org.opencontainers.image.description="Holds a Tekton TaskRun's first step until every sidecar is ready, and stops the sidecars when the last step is done" \
      org.opencontainers.image.licenses="Apache-2.0"
