{{/* What the operator does in each namespace whose runs it handles. A test runs it with exactly these rights. */}}
{{- define "cleanrl-operator.runRules" -}}
- apiGroups: [mosaic.dev]
  resources: [cleanrlruns]
  verbs: [get, list, watch]
- apiGroups: [mosaic.dev]
  resources: [cleanrlruns/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- with .Values.tensorboard }}
{{- if .always }}
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, create, patch, delete]
{{- if eq .route.kind "Ingress" }}
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [get, create, delete]
{{- else if eq .route.kind "HTTPRoute" }}
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, create, delete]
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* What it needs beyond namespaces: whether a silent worker's node is well, and whose token a worker or,
     if it is asked for one, a reader of the metrics shows. */}}
{{- define "cleanrl-operator.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [get]
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- if .Values.metrics.authorize }}
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
{{- end }}

{{/* What it does in its own namespace, whatever the scope: the Secret with the gateway's authority and the Lease of the
     election, each by its name alone, and the label of its own pod that says who leads. It makes both by itself: Argo CD never
     applies a Lease. A name can't be demanded of `create`; it reads nothing. */}}
{{- define "cleanrl-operator.ownRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "cleanrl-operator.fullname" . }}]
  verbs: [get, update]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [cleanrl-gateway]
  verbs: [get, update]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- end }}

{{/* What people do with runs. Nobody but the operator writes a status: its podUID decides which pod may speak for a run. */}}
{{- define "cleanrl-operator.viewRules" -}}
- apiGroups: [mosaic.dev]
  resources: [cleanrlruns, cleanrlruns/status]
  verbs: [get, list, watch]
{{- end }}
{{- define "cleanrl-operator.editRules" -}}
{{ include "cleanrl-operator.viewRules" . }}
- apiGroups: [mosaic.dev]
  resources: [cleanrlruns]
  verbs: [create, update, patch, delete]
{{- end }}
{{- define "cleanrl-operator.adminRules" -}}
{{ include "cleanrl-operator.editRules" . }}
- apiGroups: [mosaic.dev]
  resources: [cleanrlruns]
  verbs: [deletecollection]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [use]
{{- end }}
