{{/* The operator's settings: every variable is a field of its Settings, which refuses others. */}}
{{- define "cleanrl-operator.environment" -}}
- name: POD_NAME
  valueFrom:
    fieldRef: {fieldPath: metadata.name}
- name: POD_NAMESPACE
  valueFrom:
    fieldRef: {fieldPath: metadata.namespace}
{{- $worker := .Values.worker }}
{{- $settings := dict
  "OPERATOR_CLASS" .Values.operatorClass
  "NAMESPACES" (ternary "" .Release.Namespace (eq .Values.scope "cluster"))
  "LEASE_NAME" (include "cleanrl-operator.fullname" .)
  "HEALTH_PORT" .Values.healthPort
  "LOG_LEVEL" .Values.logLevel
  "GATEWAY_TARGET" (printf "%s.%s.svc:%v" (include "cleanrl-operator.gatewayService" .) .Release.Namespace .Values.gateway.port)
  "GATEWAY_PORT" .Values.gateway.port
  "WORKER_IMAGE" (printf "%s:%s" $worker.image.repository ($worker.image.tag | default .Chart.AppVersion))
  "IMAGE_PULL_POLICY" $worker.image.pullPolicy
  "DEFAULT_CLAIM_SIZE" $worker.defaultClaimSize
  "USER_ID" $worker.userId
  "GRACE_SECONDS" $worker.graceSeconds
  "METRICS_PORT" $worker.metricsPort
  "TENSORBOARD_PORT" $worker.tensorboardPort
  "SERVICE_ACCOUNT" $worker.serviceAccountName
  "WHEEL_CACHE_CLAIM" $worker.wheelCache.claimName
  "PACKAGE_INDEX" $worker.wheelCache.indexUrl
  "TENSORBOARD_ALWAYS" .Values.tensorboard.always
  "TENSORBOARD_BASE_PATH" (ternary "/" .Values.tensorboard.basePath (eq (toString .Values.tensorboard.basePath) ""))
  "METRICS_AUTH" .Values.metrics.authorize
}}
{{- if .Values.metrics.authorize }}
{{- $_ := set $settings "SECURE_METRICS_PORT" .Values.metrics.securePort }}
{{- $_ = set $settings "METRICS_HOST" (include "cleanrl-operator.metricsHost" .) }}
{{- end }}
{{- with .Values.tensorboard.route }}
{{- if .kind }}
{{- $_ := set $settings "TENSORBOARD_ROUTE" .kind }}
{{- $_ = set $settings "TENSORBOARD_HOST" (required "tensorboard.route.host has to say under which host TensorBoards are found" .host) }}
{{- $_ = set $settings "TENSORBOARD_SCHEME" .scheme }}
{{- if eq .kind "Ingress" }}
{{- $_ = set $settings "TENSORBOARD_INGRESS_CLASS" .ingressClassName }}
{{- else }}
{{- $_ = set $settings "TENSORBOARD_GATEWAY" (required "tensorboard.route.gateway has to name the Gateway of the HTTPRoutes" .gateway) }}
{{- end }}
{{- end }}
{{- end }}
{{- if $worker.images }}
{{- $pairs := list }}
{{- range $worker.images }}
{{- $pairs = append $pairs (printf "%s=%s" (join "+" (sortAlpha .requirements)) .image) }}
{{- end }}
{{- $_ := set $settings "IMAGES" (join "," $pairs) }}
{{- end }}
{{- range $name, $value := $settings }}
{{- /* A number from a file of values is a floating-point one, which is written with an exponent from a million on. */}}
{{- $text := ternary ($value | int64 | toString) ($value | toString) (kindIs "float64" $value) }}
{{- /* What somebody has left empty in a file of values is no value at all: then the operator's own default counts. */}}
{{- if not (or (kindIs "invalid" $value) (eq $text "")) }}
- {name: CLEANRL_OPERATOR_{{ $name }}, value: {{ $text | quote }}}
{{- end }}
{{- end }}
{{- end }}
