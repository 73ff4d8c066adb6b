{{- /* The name of everything that belongs to the operator: there is one release per Kubernetes cluster. */ -}}
{{- define "tidemark.operatorName" -}}
tidemark-operator
{{- end }}

{{- /* Labels of every object; component is given as "component". */ -}}
{{- define "tidemark.labels" -}}
app.kubernetes.io/name: tidemark
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: tidemark
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* What selects pods: nothing that a later version of the chart would say otherwise. */ -}}
{{- define "tidemark.selectorLabels" -}}
app.kubernetes.io/name: tidemark
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tidemark.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Namespaces that are watched, as a JSON list; empty where all are. */ -}}
{{- define "tidemark.namespaces" -}}
{{- if .Values.watchAnyNamespace -}}
{{- if .Values.watchNamespaces -}}
{{- fail "watchNamespaces and watchAnyNamespace exclude each other" -}}
{{- end -}}
[]
{{- else -}}
{{ .Values.watchNamespaces | default (list .Release.Namespace) | uniq | toJson }}
{{- end -}}
{{- end }}

{{- /* What the operator is told, by its Deployment and by `helm test`. */ -}}
{{- define "tidemark.operatorArguments" -}}
- --kubernetes
{{- if .Values.watchAnyNamespace }}
- --all-namespaces
{{- end }}
{{- range include "tidemark.namespaces" . | fromJsonArray }}
- --namespace={{ . }}
{{- end }}
- --node-image={{ .Values.nodeImage.repository }}
{{- range (.Values.security | default dict).allowedImages }}
- {{ printf "--allowed-image=%s" . | quote }}
{{- end }}
- --ca-overlap={{ int64 .Values.caOverlapSeconds }}
- --log-level={{ .Values.log.level }}
- --log-format={{ .Values.log.format }}
{{- end }}

{{- /* What the restricted pod security standard asks of a pod and of a container. */ -}}
{{- define "tidemark.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tidemark.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
