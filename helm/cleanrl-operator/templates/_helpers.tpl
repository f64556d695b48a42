{{- define "cleanrl-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "cleanrl-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "cleanrl-operator.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Objects outside namespaces, and in those of others, carry the release's namespace, so that two installations can't meet in
     one name. */}}
{{- define "cleanrl-operator.clusterName" -}}
{{- printf "%s.%s" (include "cleanrl-operator.fullname" .) .Release.Namespace }}
{{- end }}

{{- define "cleanrl-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "cleanrl-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name has to say which service account to use, since serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "cleanrl-operator.gatewayService" -}}
{{- printf "%s-gateway" (include "cleanrl-operator.fullname" .) }}
{{- end }}

{{/* The name for which the metrics' certificate is made. */}}
{{- define "cleanrl-operator.metricsHost" -}}
{{- printf "%s-metrics.%s.svc" (include "cleanrl-operator.fullname" .) .Release.Namespace }}
{{- end }}

{{/* Where metrics are: the name of the container's port. */}}
{{- define "cleanrl-operator.metricsPort" -}}
{{- ternary "metrics" "health" .Values.metrics.authorize }}
{{- end }}

{{- define "cleanrl-operator.selector" -}}
app.kubernetes.io/name: {{ include "cleanrl-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "cleanrl-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "cleanrl-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: cleanrl-operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* What the restricted profile asks of a container. */}}
{{- define "cleanrl-operator.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "cleanrl-operator.confinedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}
