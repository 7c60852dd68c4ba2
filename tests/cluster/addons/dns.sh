# shellcheck shell=bash
# CoreDNS, at the address that the kubelet gives to every pod.

dns_needs() { :; }
dns_tools() { echo coredns; }
dns_images() { echo coredns; }

# As in config/kubelet.yaml.
DNS_SERVICE_IP=10.96.0.10

dns_install() {
  doing "applying its manifests"
  dns_manifests | kubectl apply --server-side --force-conflicts -f - >"$(log_file dns-apply)" 2>&1 ||
    die "CoreDNS's manifests were refused" "All of the answer: $(log_file dns-apply)"
  doing "waiting for CoreDNS"
  kubectl -n kube-system rollout status deployment/coredns --timeout=180s >/dev/null ||
    die "CoreDNS did not become available" "Next: $0 kubectl -n kube-system describe pods"
  wait_for 60 "kube-proxy's rules for it" proxy dns_reachable
}

# kube-proxy learns of its pod a moment later.
dns_reachable() {
  [[ $(in_network iptables-save -t nat) == *"-d $DNS_SERVICE_IP/32 -p udp "* ]]
}

# Available, in the pinned version.
dns_ready() {
  [ "$(kubectl -n kube-system get deployment coredns \
    -o 'jsonpath={.spec.template.spec.containers[0].image} {.status.conditions[?(@.type=="Available")].status}')" = \
    "$(image_reference coredns) True" ] 2>/dev/null
}

dns_manifests() {
  cat <<YAML
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: coredns}
rules:
- {apiGroups: [""], resources: [services, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: coredns}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    cluster.local in-addr.arpa ip6.arpa {
      errors
      ready
      kubernetes cluster.local in-addr.arpa ip6.arpa
    }
    . {
      # There is no way out, so no other name exists: clients hear it at once.
      template ANY ANY {
        rcode NXDOMAIN
      }
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      containers:
      - name: coredns
        image: $(image_reference coredns)
        args: [-conf, /etc/coredns/Corefile]
        ports: [{name: dns, containerPort: 53, protocol: UDP}, {name: dns-tcp, containerPort: 53}]
        readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /etc/coredns}]
      volumes: [{name: config, configMap: {name: coredns}}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: $DNS_SERVICE_IP
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}]
YAML
}
