# shellcheck shell=bash
# The real Tekton Pipelines: controller and webhook, from the manifests its module carries.
# Left out: the resolvers and the events controller (both reach out of the cluster), the webhook's autoscaler.

TEKTON_IMAGES=(tekton/controller tekton/webhook tekton/entrypoint tekton/nop tekton/workingdirinit tekton/sidecarlogresults)

tekton_needs() { :; }
tekton_tools() { echo tekton; }
tekton_images() { printf '%s\n' "${TEKTON_IMAGES[@]}"; }

# What its release pipeline does: fill in the images and the version.
tekton_manifests() {
  local config
  config=$(build_dir tekton)/data/config
  local file
  for file in "$config"/100-namespace/*.yaml "$config"/2*.yaml "$config"/300-crds/*.yaml "$config"/5*.yaml \
    "$config"/clusterrole*.yaml "$config"/config-*.yaml "$config"/controller.yaml "$config"/webhook.yaml; do
    echo ---
    sed -E \
      -e "s#ko://$(tool_module tekton)/cmd/([a-z]+)#localhost/tekton/\1:$TEKTON_VERSION#" \
      -e "s#(\"-shell-image(-win)?\"), \"[^\"]+\"#\1, \"$(image_reference busybox)\"#" \
      -e "s#(version|release): \"devel\"#\1: \"$TEKTON_VERSION\"#" \
      "$file"
  done
}

tekton_install() {
  tekton_manifests >"$STATE/config/tekton.yaml"
  doing "applying its manifests"
  kubectl apply --server-side --force-conflicts -f "$STATE/config/tekton.yaml" >"$(log_file tekton-apply)" 2>&1 || {
    tail -n 5 "$(log_file tekton-apply)" >&2
    die "Tekton's manifests were refused" "All of the answer: $(log_file tekton-apply)"
  }
  tekton_wait
}

tekton_wait() {
  doing "waiting for its controller and webhook"
  kubectl -n tekton-pipelines wait deployment --all --for=condition=Available --timeout=180s >/dev/null ||
    die "Tekton did not become available" "Next: $0 kubectl -n tekton-pipelines describe pods"
  # Its webhook is available a moment before the API server knows its certificate.
  wait_for 60 "Tekton's webhook" apiserver tekton_answers
}

tekton_answers() {
  kubectl create --dry-run=server -o name -f - <<'YAML'
apiVersion: tekton.dev/v1
kind: TaskRun
metadata: {name: probe, namespace: default}
spec: {taskSpec: {steps: [{name: probe, image: probe, command: [probe]}]}}
YAML
}

# Available, in the pinned version.
tekton_ready() {
  [ "$(kubectl -n tekton-pipelines get deployment tekton-pipelines-controller tekton-pipelines-webhook \
    -o 'jsonpath={range .items[*]}{.metadata.labels.version}{.status.conditions[?(@.type=="Available")].status} {end}')" = \
    "${TEKTON_VERSION}True ${TEKTON_VERSION}True " ] 2>/dev/null
}

# tekton_flags [KEY=VALUE…]: sets feature flags, or shows them. Tekton sees the change within about a second.
tekton_flags() {
  local current pair patch=
  # shellcheck disable=SC2016 # a template's names, not the shell's
  current=$(kubectl -n tekton-pipelines get configmap feature-flags \
    -o 'go-template={{range $key, $value := .data}}{{$key}}={{$value}}{{"\n"}}{{end}}') ||
    die "cannot read Tekton's feature flags" "Next: $0 status"
  if [ $# = 0 ]; then
    echo "$current"
    return
  fi
  for pair in "$@"; do
    [[ $pair =~ ^([a-z0-9-]+)=([A-Za-z0-9_.,-]*)$ ]] || die "'$pair' is no flag" "It goes KEY=VALUE, as in enable-kubernetes-sidecar=true"
    # Tekton ignores a name it does not know, so a slip of the pen would go unseen.
    grep -q "^${BASH_REMATCH[1]}=" <<<"$current" ||
      die "Tekton $TEKTON_VERSION has no feature flag '${BASH_REMATCH[1]}'" "Next: $0 tekton-flags      lists them"
    patch+="${patch:+,}\"${BASH_REMATCH[1]}\":\"${BASH_REMATCH[2]}\""
  done
  kubectl -n tekton-pipelines patch configmap feature-flags --type merge --patch "{\"data\":{$patch}}"
}
