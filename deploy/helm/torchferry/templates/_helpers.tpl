{{- define "torchferry.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "torchferry.fullname" -}}
{{- $name := include "torchferry.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "torchferry.selectorLabels" -}}
app.kubernetes.io/name: {{ include "torchferry.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "torchferry.labels" -}}
{{ include "torchferry.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "torchferry.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "torchferry.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* image: (dict "root" $ "part" .Values.ingress) */ -}}
{{- define "torchferry.image" -}}
{{- with .root.Values.image.registry -}}{{ . }}/{{- end -}}
{{ .part.image.repository }}:{{ coalesce .part.image.tag .root.Values.image.tag .root.Chart.AppVersion }}
{{- end -}}

{{- /*
text: a value as it was written. Helm reads each number of a values file as a float64, which
toString and quote print as 6.7108864e+07 from a million on: no setting would take that.
*/ -}}
{{- define "torchferry.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{- /* podSpec: what the pods of both parts have in common. (dict "root" $ "part" .Values.ingress) */ -}}
{{- define "torchferry.podSpec" -}}
serviceAccountName: {{ include "torchferry.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "torchferry.selectorLabels" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* env: what both parts are told. (dict "root" $ "part" .Values.ingress "urlKey" "redis-url") */ -}}
{{- define "torchferry.env" -}}
- name: REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ .root.Values.redis.existingSecret }}
      key: {{ .urlKey }}
{{- if .root.Values.redis.tls.existingSecret }}
- name: FERRY_REDIS_CA_FILE
  value: /etc/torchferry/redis/ca.crt
{{- if .root.Values.redis.tls.clientCertificate }}
- name: FERRY_REDIS_CERT_FILE
  value: /etc/torchferry/redis/tls.crt
- name: FERRY_REDIS_KEY_FILE
  value: /etc/torchferry/redis/tls.key
{{- end }}
{{- end }}
{{- with .root.Values.webhooks }}
{{- if .existingSecret }}
- name: FERRY_WEBHOOK_SECRETS
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .key }}
{{- end }}
{{- end }}
- name: HOME
  value: /tmp
{{- range $name, $value := .root.Values.config }}
- name: FERRY_{{ upper $name }}
  value: {{ include "torchferry.text" $value | quote }}
{{- end }}
{{- range $name, $value := .part.extraEnv }}
- name: {{ $name }}
  value: {{ include "torchferry.text" $value | quote }}
{{- end }}
{{- end -}}

{{- define "torchferry.redisMount" -}}
{{- if .Values.redis.tls.existingSecret }}
- name: redis-tls
  mountPath: /etc/torchferry/redis
  readOnly: true
{{- end }}
{{- end -}}

{{- define "torchferry.redisVolume" -}}
{{- with .Values.redis.tls.existingSecret }}
- name: redis-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "torchferry.modelStoreVolume" -}}
- name: model-store
{{- if .Values.modelStore.existingClaim }}
  persistentVolumeClaim:
    claimName: {{ .Values.modelStore.existingClaim }}
{{- else if .Values.modelStore.create }}
  persistentVolumeClaim:
    claimName: {{ include "torchferry.fullname" . }}-model-store
{{- else }}
  emptyDir: {}
{{- end }}
{{- end -}}

{{- define "torchferry.hasWebhookAuthority" -}}
{{- with .Values.webhooks }}{{ if and .existingSecret .caCertificate }}true{{ end }}{{ end -}}
{{- end -}}

{{- /* The number that nodes are scaled by: docs/adr/0008. Without ingresses to scrape, or without
Redis, it has no value, and KEDA leaves the number of pods as it is; without models it is 0. */ -}}
{{- define "torchferry.openRequestsQuery" -}}
{{- $from := printf "namespace=\"%s\",job=\"%s-metrics\"" .Release.Namespace (include "torchferry.fullname" .) -}}
sum(max by (model, version) (ferry_queue_open_requests{ {{- $from -}} })) or max(ferry_nodes{ {{- $from -}} }) * 0
{{- end -}}
