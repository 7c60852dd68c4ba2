# shellcheck shell=bash
# Certificates and kubeconfigs, made anew for each cluster and gone with it.

pki_create() {
  mkdir -p "$STATE/pki"
  (
    cd "$STATE/pki" || exit
    umask 077
    new_key -x509 -keyout ca.key -out ca.crt -days 3650 -subj "/CN=$NAME-ca"
    certificate apiserver /CN=kube-apiserver \
      "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:127.0.0.1,IP:$API_SERVICE_IP,IP:$NODE_IP"
    certificate admin /O=system:masters/CN=admin
    certificate controller-manager /CN=system:kube-controller-manager
    certificate scheduler /CN=system:kube-scheduler
    certificate proxy /CN=system:kube-proxy
    # It serves, too: without the node's address in it `kubectl logs` fails.
    certificate kubelet "/O=system:nodes/CN=system:node:$NODE" "DNS:$NODE,IP:127.0.0.1,IP:$NODE_IP"
    openssl ecparam -name prime256v1 -genkey -noout -out service-account.key
    openssl ec -in service-account.key -pubout -out service-account.pub 2>/dev/null
  )
  local user
  for user in controller-manager scheduler proxy kubelet; do
    kubeconfig_for "$user" >"$STATE/pki/$user.kubeconfig"
  done
  (umask 077 && kubeconfig_for admin >"$STATE/kubeconfig")
}

new_key() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "$@" 2>/dev/null
}

# certificate NAME SUBJECT [NAMES]
certificate() {
  new_key -keyout "$1.key" -out "$1.csr" -subj "$2"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$1.crt" 2>/dev/null \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "${3:-DNS:$1}")
  rm "$1.csr"
}

# With the certificates inside, so that the file may be copied.
kubeconfig_for() {
  cat <<YAML
apiVersion: v1
kind: Config
clusters:
- name: $NAME
  cluster:
    server: https://127.0.0.1:6443
    certificate-authority-data: $(base64 -w0 "$STATE/pki/ca.crt")
users:
- name: $1
  user:
    client-certificate-data: $(base64 -w0 "$STATE/pki/$1.crt")
    client-key-data: $(base64 -w0 "$STATE/pki/$1.key")
contexts:
- name: $NAME
  context: {cluster: $NAME, user: $1}
current-context: $NAME
YAML
}
