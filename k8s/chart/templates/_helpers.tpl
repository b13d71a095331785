{{- define "ratchet.image" -}}
{{- $image := .Values.image -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "ratchet.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Labels of an object of the component .component. The name and component select its pods. */}}
{{- define "ratchet.selector" -}}
app.kubernetes.io/name: {{ include "ratchet.name" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "ratchet.labels" -}}
{{ include "ratchet.selector" . }}
app.kubernetes.io/part-of: ratchet
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* Lines whose requests Ratchet's router answers, as a JSON object with the key `lines`. */}}
{{- define "ratchet.routed" -}}
{{- $routed := list }}
{{- range .Values.lines }}
{{- if ne (.router | default "kubernetes") "gateway" }}{{ $routed = append $routed . }}{{ end }}
{{- end }}
{{- dict "lines" $routed | toJson }}
{{- end }}

{{/* HTTPRoutes that the service writes, as a JSON object with the keys `weights` and `bypass`. */}}
{{- define "ratchet.httpRoutes" -}}
{{- $weights := list }}{{- $bypass := list }}
{{- range .Values.lines }}
{{- if eq (.router | default "kubernetes") "gateway" }}{{ $weights = append $weights (printf "ratchet-%s" .name) }}
{{- else if $.Values.gateway.bypass }}{{ $bypass = append $bypass (printf "ratchet-%s-bypass" .name) }}{{ end }}
{{- end }}
{{- dict "weights" $weights "bypass" $bypass | toJson }}
{{- end }}

{{- define "ratchet.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{- define "ratchet.pod" -}}
enableServiceLinks: false
securityContext: {{ toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Environment of every pod that uses the buckets. */}}
{{- define "ratchet.env" -}}
- { name: RATCHET_EXCHANGE, value: {{ .Values.bucket.exchange | quote }} }
{{- if .Values.bucket.region }}
- { name: AWS_DEFAULT_REGION, value: {{ .Values.bucket.region | quote }} }
{{- end }}
{{- if .Values.bucket.endpoint }}
- { name: AWS_ENDPOINT_URL, value: {{ .Values.bucket.endpoint | quote }} }
{{- end }}
{{- if .Values.bucket.secret }}
{{- range $name := list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ $name }}
  valueFrom: { secretKeyRef: { name: {{ $.Values.bucket.secret }}, key: {{ $name }} } }
{{- end }}
{{- end }}
- { name: HOME, value: /tmp }
{{- range $name, $value := .Values.extraEnv }}
- { name: {{ $name }}, value: {{ $value | quote }} }
{{- end }}
{{- end }}

{{- define "ratchet.prefectUrl" -}}
{{ .Values.prefect.url | default (printf "http://%s-prefect.%s.svc:4200/api" (include "ratchet.name" .) .Release.Namespace) }}
{{- end }}

{{- define "ratchet.spread" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{ include "ratchet.selector" . | nindent 14 }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "ratchet.selector" . | nindent 8 }}
{{- end }}

{{/* "true" if a second pod of the service waits for the first one, otherwise empty. */}}
{{- define "ratchet.standby" -}}
{{- if gt (int .Values.service.replicas) 1 }}true{{ end }}
{{- end }}
