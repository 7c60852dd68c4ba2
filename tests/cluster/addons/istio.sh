# shellcheck shell=bash
# The real Istio: istiod, from the charts its module carries, which injects proxies with the Envoy project's own Envoy.

istio_needs() { echo dns; }
istio_tools() { printf '%s\n' istio envoy helm; }
istio_images() { printf '%s\n' istio/pilot istio/proxyv2; }

# One --set for each. What Istio's own build of Envoy has and others have not is switched off: with it in its
# configuration, the proxy would refuse all of it. And the requests are made small: the node is.
ISTIO_SETTINGS=(
  global.hub=localhost/istio "global.tag=$ISTIO_VERSION" global.imagePullPolicy=IfNotPresent
  telemetry.enabled=false env.PILOT_ENABLE_METADATA_EXCHANGE=false env.PILOT_ENABLE_ALPN_FILTER=false
  env.PILOT_DISABLE_MX_ALPN=true
  autoscaleEnabled=false resources.requests.cpu=50m resources.requests.memory=128Mi
  global.proxy.resources.requests.cpu=10m global.proxy.resources.requests.memory=64Mi
)

# The folder of its charts.
istio_charts() {
  fetch_data istio
  echo "$(build_dir istio)/data/charts"
}

# shellcheck disable=SC2119
istio_install() {
  istio_helm istio-base base --set defaultRevision=default
  istio_apply
}

# istio_helm RELEASE CHART ARGS…
istio_helm() {
  local release=$1 chart=$2 log
  log=$(log_file "helm-$release")
  shift 2
  doing "installing the chart of $release"
  "${UNPROXIED[@]}" nsenter --net="$NETNS" "$(build_dir helm)/helm" --kubeconfig "$STATE/kubeconfig" \
    upgrade --install "$release" "$(istio_charts)/$chart" --namespace istio-system --create-namespace "$@" \
    >"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    die "helm could not install $release" "All of its answer: $log"
  }
}

# istio_apply [KEY=VALUE…]: istiod with these settings on top of ours, and no others of earlier.
# shellcheck disable=SC2120 # istio_set, through `part`
istio_apply() {
  local setting key arguments=()
  for setting in "${ISTIO_SETTINGS[@]}" "$@"; do
    key=${setting%%=*}
    case $key in
    # Texts to Istio, whatever they look like.
    env.* | *.proxyMetadata.*) arguments+=(--set-string "$setting") ;;
    *) arguments+=(--set "$setting") ;;
    esac
  done
  # istiod reads most of it from a mounted file that a kubelet is a minute late to renew: other settings, other pod.
  arguments+=(--set-string "podAnnotations.settings=$(printf '%s\n' "$@" | sha256sum | cut -c 1-12)")
  istio_helm istiod istio-control/istio-discovery "${arguments[@]}"
  doing "waiting for istiod"
  kubectl -n istio-system rollout status deployment/istiod --timeout=180s >/dev/null ||
    die "istiod did not become available" "Next: $0 kubectl -n istio-system describe pods"
  # The API server learns its certificate, and kube-proxy its address, a moment later.
  wait_for 60 "Istio's injector" apiserver istio_injects
}

istio_injects() {
  local containers
  containers=$(kubectl create --dry-run=server -f - \
    -o 'jsonpath={.spec.initContainers[*].name} {.spec.containers[*].name}' <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: probe, namespace: default, labels: {sidecar.istio.io/inject: "true"}}
spec: {containers: [{name: probe, image: probe}]}
YAML
  )
  [[ " $containers " == *' istio-proxy '* ]]
}

# Available, in the pinned version.
istio_ready() {
  [ "$(kubectl -n istio-system get deployment istiod \
    -o 'jsonpath={.spec.template.spec.containers[0].image} {.status.conditions[?(@.type=="Available")].status}')" = \
    "$(image_reference istio/pilot) True" ] 2>/dev/null
}

# istio_set [KEY=VALUE…]
istio_set() {
  local pair
  for pair in "$@"; do
    [[ $pair =~ ^[A-Za-z][A-Za-z0-9_.\\/-]*= ]] ||
      die "'$pair' is no setting" "It goes KEY=VALUE, as in env.ENABLE_NATIVE_SIDECARS=false"
  done
  istio_ready || die "Istio is not installed, or not ready" "Next: $0 up --with istio"
  build helm
  part 'set istio' istio_apply "$@"
}
