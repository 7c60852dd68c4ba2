# shellcheck shell=bash
# etcd, the API server, the controller manager and the scheduler.

etcd_start() {
  # Nothing here has to survive a power cut, so no fsync.
  daemon etcd etcd --data-dir "$STATE/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster default=http://127.0.0.1:2380
}

apiserver_start() {
  local pki=$STATE/pki extra=()
  # Words of one's own, such as --runtime-config=… or --feature-gates=…
  read -ra extra <<<"${KICKSTAND_APISERVER_ARGS:-}"
  render audit-policy.yaml >"$STATE/config/audit-policy.yaml"
  daemon apiserver kube-apiserver \
    --etcd-servers=http://127.0.0.1:2379 \
    --advertise-address="$NODE_IP" --secure-port=6443 \
    --service-cluster-ip-range=10.96.0.0/16 \
    --client-ca-file="$pki/ca.crt" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --kubelet-certificate-authority="$pki/ca.crt" \
    --kubelet-client-certificate="$pki/admin.crt" --kubelet-client-key="$pki/admin.key" \
    --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$pki/service-account.pub" \
    --service-account-signing-key-file="$pki/service-account.key" \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
    --audit-policy-file="$STATE/config/audit-policy.yaml" --audit-log-path="$(log_file audit)" \
    --audit-log-maxsize=100 --audit-log-maxbackup=3 \
    "${extra[@]}"
}

apiserver_wait() {
  wait_for 120 'the API server' apiserver kubectl get --raw /readyz
}

managers_start() {
  local pki=$STATE/pki
  daemon controller-manager kube-controller-manager --kubeconfig "$pki/controller-manager.kubeconfig" \
    --leader-elect=false --use-service-account-credentials \
    --service-account-private-key-file="$pki/service-account.key" --root-ca-file="$pki/ca.crt" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
    --allocate-node-cidrs=false
  daemon scheduler kube-scheduler --kubeconfig "$pki/scheduler.kubeconfig" --leader-elect=false
}

# A proxy setting of the user's must not reach for the API server.
UNPROXIED=(env -u http_proxy -u https_proxy -u all_proxy -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY)
kubectl() {
  "${UNPROXIED[@]}" nsenter --net="$NETNS" "$STATE/bin/kubectl" --kubeconfig "$STATE/kubeconfig" "$@"
}
