# shellcheck shell=bash
# The node: containerd, the kubelet and kube-proxy.

CONTAINERD_SOCKET=$STATE/run/containerd.sock

containerd_start() {
  render containerd.toml >"$STATE/config/containerd.toml"
  render cni.conflist >"$STATE/config/cni/10-$NAME.conflist"
  daemon containerd containerd --config "$STATE/config/containerd.toml"
}

containerd_wait() {
  wait_for 60 containerd containerd containerd_ready
}

# The socket answers before every part behind it does.
containerd_ready() {
  [[ $(ctr plugins list) =~ io.containerd.cri.v1[[:blank:]]+images[[:blank:]].*[[:blank:]]ok ]]
}

# Each call would warn of cgroup v1.
export CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1
ctr() {
  "$STATE/bin/ctr" --address "$CONTAINERD_SOCKET" --namespace "${CONTAINERD_NAMESPACE:-k8s.io}" "$@"
}

kubelet_start() {
  render kubelet.yaml >"$STATE/config/kubelet.yaml"
  daemon kubelet kubelet --config "$STATE/config/kubelet.yaml" --kubeconfig "$STATE/pki/kubelet.kubeconfig" \
    --hostname-override="$NODE" --node-ip="$NODE_IP" \
    --root-dir="$STATE/kubelet" --cert-dir="$STATE/kubelet/pki"
}

proxy_start() {
  # The limits of connection tracking belong to the host, and cannot be set from in here.
  daemon proxy kube-proxy --kubeconfig "$STATE/pki/proxy.kubeconfig" --hostname-override="$NODE" \
    --proxy-mode=iptables --cluster-cidr=10.244.0.0/22 \
    --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0
}

node_wait() {
  wait_for 60 'the node' kubelet node_ready
  wait_for 60 "kube-proxy's rules" proxy proxy_ready
}

node_ready() {
  [ "$(kubectl get node "$NODE" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]
}

# Every cluster has this service.
proxy_ready() {
  [[ $(in_network iptables-save -t nat) == *"-d $API_SERVICE_IP/32 "* ]]
}
