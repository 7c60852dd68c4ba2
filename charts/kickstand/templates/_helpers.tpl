{{- define "kickstand.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Late in the alphabet, which is the order in which the API server calls webhooks: after the injectors, one call a pod
does. Called before them it would see no sidecar yet and be called again. Nothing depends on it: that order is promised
nowhere, and reinvocationPolicy makes up for any other. */}}
{{- define "kickstand.webhookConfiguration" -}}
zz-{{ include "kickstand.fullname" . }}
{{- end -}}

{{/* Early in the alphabet: it asks injectors for native sidecars, before they see the pod. Whoever was asked too late adds
a classic one, which the late call takes care of. */}}
{{- define "kickstand.earlyConfiguration" -}}
0-{{ include "kickstand.fullname" . }}
{{- end -}}

{{/* Those that are rendered, the one that gates first: it is filled in first, and deleted first. */}}
{{- define "kickstand.webhookConfigurations" -}}
{{ include "kickstand.webhookConfiguration" . }}
{{- if .Values.native.enabled }},{{ include "kickstand.earlyConfiguration" . }}{{ end -}}
{{- end -}}

{{/* Namespaces that Istio never injects into, besides kube-system. */}}
{{- define "kickstand.istioNever" -}}
["kube-public","kube-node-lease","local-path-storage"]
{{- end -}}

{{/* Where webhook and controller find the sidecars that `knownSidecars` adds. */}}
{{- define "kickstand.knownSidecarsFolder" -}}
/etc/kickstand/known-sidecars
{{- end -}}

{{- define "kickstand.knownSidecarsArg" -}}
{{- if .Values.knownSidecars -}}
- --known-sidecars={{ include "kickstand.knownSidecarsFolder" . }}/known-sidecars.json
{{- end -}}
{{- end -}}

{{- define "kickstand.knownSidecarsMount" -}}
{{- if .Values.knownSidecars -}}
- name: known-sidecars
  mountPath: {{ include "kickstand.knownSidecarsFolder" . }}
  readOnly: true
{{- end -}}
{{- end -}}

{{- define "kickstand.knownSidecarsVolume" -}}
{{- if .Values.knownSidecars -}}
- name: known-sidecars
  configMap:
    name: {{ include "kickstand.fullname" . }}-known-sidecars
{{- end -}}
{{- end -}}

{{/* It is read once, at the start: another table means other pods. */}}
{{- define "kickstand.knownSidecarsChecksum" -}}
{{- if .Values.knownSidecars -}}
checksum/known-sidecars: {{ toJson .Values.knownSidecars | sha256sum }}
{{- end -}}
{{- end -}}

{{- define "kickstand.lease" -}}
{{ include "kickstand.fullname" . }}-controller
{{- end -}}

{{/* Everything of `helm test`, the namespace that it makes included: a name that nobody has by chance. */}}
{{- define "kickstand.test" -}}
{{ include "kickstand.fullname" . }}-helm-test
{{- end -}}

{{/* With watchNamespaces, one that is made for the test would not be covered. */}}
{{- define "kickstand.testNamespace" -}}
{{- .Values.test.namespace | default (first (.Values.watchNamespaces | default (list ""))) | default (include "kickstand.test" .) -}}
{{- end -}}

{{- define "kickstand.tlsSecret" -}}
{{- if .Values.certificates.managed -}}
{{ include "kickstand.fullname" . }}-webhook-tls
{{- else -}}
{{ required "certificates.managed is false: certificates.secretName must name the Secret with tls.crt and tls.key" .Values.certificates.secretName }}
{{- end -}}
{{- end -}}

{{/* (dict "image" values "registry" fallback "root" $) */}}
{{- define "kickstand.image" -}}
{{- $name := printf "%s/%s" (.image.registry | default .registry) .image.repository -}}
{{- if .image.digest -}}
{{ $name }}@{{ .image.digest }}
{{- else -}}
{{ $name }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "kickstand.ownImage" -}}
{{ include "kickstand.image" (dict "image" .Values.image "registry" "" "root" .) }}
{{- end -}}

{{/* (dict "component" name "root" $) */}}
{{- define "kickstand.selectorLabels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "kickstand.labels" -}}
{{ include "kickstand.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* No mesh may inject into these pods: API servers speak plain TLS to them, and Kickstand must not wait for a mesh that
may be waiting for it. */}}
{{- define "kickstand.podMetadata" -}}
labels:
  {{- $ours := include "kickstand.labels" . | fromYaml }}
  {{- $ours = merge (dict "sidecar.istio.io/inject" "false" "istio.io/dataplane-mode" "none") $ours }}
  {{- merge $ours .root.Values.podLabels | toYaml | nindent 2 }}
annotations:
  {{- merge (dict "linkerd.io/inject" "disabled" "kubectl.kubernetes.io/default-container" "kickstand") .root.Values.podAnnotations | toYaml | nindent 2 }}
{{- end -}}

{{/* No runAsUser: the image's own user is not root, and OpenShift gives each namespace another. */}}
{{- define "kickstand.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "kickstand.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- define "kickstand.scheduling" -}}
{{- $fields := dict -}}
{{- range $key := list "imagePullSecrets" "priorityClassName" "nodeSelector" "tolerations" "affinity" -}}
{{- with index $.Values $key -}}{{- $_ := set $fields $key . -}}{{- end -}}
{{- end -}}
{{- with $fields }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* matchLabelKeys: else the old replicas would count during an update, and the new ones end up side by side. */}}
{{- define "kickstand.spread" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "kickstand.selectorLabels" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end -}}

{{- define "kickstand.probes" -}}
livenessProbe:
  httpGet:
    path: /livez
    port: admin
  periodSeconds: 10
  timeoutSeconds: 3
readinessProbe:
  httpGet:
    path: /readyz
    port: admin
  periodSeconds: 2
  timeoutSeconds: 2
{{- end -}}

{{- define "kickstand.downwardEnv" -}}
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- end -}}

{{- define "kickstand.logArgs" -}}
- --log-format={{ .Values.log.format }}
- {{ printf "--log-level=%s" .Values.log.level | quote }}
{{- end -}}

{{/* A duration as the schema allows it (1h2m3s4ms), in milliseconds. */}}
{{- define "kickstand.milliseconds" -}}
{{- $units := dict "h" 3600000 "m" 60000 "s" 1000 "ms" 1 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+[a-z]+" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $sum = add $sum (mul (atoi (trimSuffix $unit .)) (index $units $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Empty: the binary's own, 4 s, which is in time for a timeoutSeconds of 5 or more. */}}
{{- define "kickstand.reviewDeadline" -}}
{{- with .Values.webhook -}}
{{- if .reviewDeadline -}}
{{- .reviewDeadline -}}
{{- else if lt (int .timeoutSeconds) 5 -}}
{{- mul (int .timeoutSeconds) 800 -}}ms
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the schema cannot say. */}}
{{- define "kickstand.check" -}}
{{- $review := include "kickstand.milliseconds" (include "kickstand.reviewDeadline" . | default "4s") | int -}}
{{- if or (eq $review 0) (ge $review (mul 1000 (int .Values.webhook.timeoutSeconds) | int)) -}}
{{- fail (printf "webhook.reviewDeadline is %s: it must be more than 0 and less than webhook.timeoutSeconds (%d)" .Values.webhook.reviewDeadline (int .Values.webhook.timeoutSeconds)) -}}
{{- end -}}
{{- $drain := .Values.webhook.drainDeadline | default "20s" -}}
{{- $grace := .Values.webhook.drainGrace | default "5s" -}}
{{- $leave := .Values.terminationGracePeriodSeconds | int -}}
{{- if ge (add (include "kickstand.milliseconds" $grace) (include "kickstand.milliseconds" $drain) | int) (mul 1000 $leave | int) -}}
{{- fail (printf "webhook.drainGrace and webhook.drainDeadline (%s, %s) must together be less than terminationGracePeriodSeconds (%d)" $grace $drain $leave) -}}
{{- end -}}
{{- range .Values.watchNamespaces -}}
{{- if has . (list "kube-system" $.Release.Namespace) -}}
{{- fail (printf "watchNamespaces: %s cannot be covered: neither kube-system nor the release's own namespace ever is" .) -}}
{{- end -}}
{{- end -}}
{{- with .Values.test.namespace -}}
{{- if or (has . (list "kube-system" $.Release.Namespace)) (and $.Values.watchNamespaces (not (has . $.Values.watchNamespaces))) -}}
{{- fail (printf "test.namespace: %s is never covered: neither are kube-system and the release's own namespace, nor is one that is not in watchNamespaces" .) -}}
{{- end -}}
{{- end -}}
{{- if eq (int .Values.webhook.port) (int .Values.adminPort) -}}
{{- fail (printf "webhook.port and adminPort are both %d: choose another for one of them" (int .Values.adminPort)) -}}
{{- end -}}
{{- if and .Values.webhook.hostNetwork (eq (int .Values.webhook.port) 10250) -}}
{{- fail "webhook.hostNetwork is true, and port 10250 of a node is the kubelet's: set webhook.port to another, and open it to the API server" -}}
{{- end -}}
{{- end -}}

{{/* Binds a ClusterRole in the watched namespaces, or in the whole cluster.
(dict "name" of role and binding, "account" ServiceAccount, "component" …, "annotations" map, "root" $) */}}
{{- define "kickstand.bindWatched" -}}
{{- $one := . }}
{{- range (.root.Values.watchNamespaces | default (list "")) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if . }}RoleBinding{{ else }}ClusterRoleBinding{{ end }}
metadata:
  name: {{ $one.name }}
  {{- if . }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "kickstand.labels" $one | nindent 4 }}
  {{- with $one.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $one.name }}
subjects:
  - kind: ServiceAccount
    name: {{ $one.account }}
    namespace: {{ $one.root.Release.Namespace }}
{{- end }}
{{- end -}}
