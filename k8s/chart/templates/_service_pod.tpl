{{/* Template of the service's pods, for its StatefulSet and its Deployment. */}}
{{- define "ratchet.servicePod" -}}
{{- $component := dict "root" . "component" "service" }}
{{- $name := printf "%s-service" (include "ratchet.name" .) -}}
metadata:
  labels: {{ include "ratchet.labels" $component | nindent 4 }}
  annotations:
    # A changed loop file is read while the service runs; a changed list of lines needs a new pod.
    checksum/lines: {{ range .Values.lines }}{{ .name }} {{ end }}
    {{- with .Values.service.annotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ $name }}
  automountServiceAccountToken: {{ not .Values.service.kubeconfigSecret }}
  terminationGracePeriodSeconds: 90
  {{- include "ratchet.pod" . | nindent 2 }}
  # Two pods on one node would be lost together. A single pod has the rule, too: in a change from two pods to one, the scheduler would
  # otherwise not try again at once when they have ended.
  affinity:
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{ include "ratchet.selector" $component | nindent 14 }}
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: topology.kubernetes.io/zone
            labelSelector:
              matchLabels: {{ include "ratchet.selector" $component | nindent 16 }}
  containers:
    - name: service
      image: {{ include "ratchet.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command:
        - {{ .Values.python }}
        - -m
        - ratchet.flows.cli.main
        - serve
        {{- range .Values.lines }}
        - /lines/{{ .name }}/loop.toml
        {{- end }}
      env:
        - { name: RATCHET_HOME, value: /home/ratchet }
        - { name: RATCHET_KEYS, value: /keys }
        # Tells this pod from others of the installation, also from a former one of the same name.
        - { name: RATCHET_POD, valueFrom: { fieldRef: { fieldPath: metadata.uid } } }
        {{- if include "ratchet.standby" . }}
        - { name: RATCHET_STANDBY, value: "true" }
        {{- end }}
        {{- with .Values.bucket.anchors }}
        - { name: RATCHET_ANCHORS, value: {{ . | quote }} }
        {{- end }}
        - { name: RATCHET_ARTIFACTS_URL, value: {{ .Values.bucket.artifacts | quote }} }
        - name: RATCHET_RECEIVER_URL
          value: >-
            {{- range .Values.lines }}
            {{ .name }}=http://{{ include "ratchet.name" $ }}-receiver.{{ $.Release.Namespace }}.svc:{{ .receiverPort }}
            {{- end }}
        - name: RATCHET_LEDGER_URL
          valueFrom: { secretKeyRef: { name: {{ .Values.ledger.secret }}, key: {{ .Values.ledger.key }} } }
        - { name: RATCHET_WAREHOUSE, value: {{ .Values.lake.warehouse | quote }} }
        - name: RATCHET_CATALOG_URL
          valueFrom: { secretKeyRef: { name: {{ .Values.lake.catalog.secret }}, key: {{ .Values.lake.catalog.key }} } }
        - { name: PREFECT_API_URL, value: {{ include "ratchet.prefectUrl" . | quote }} }
        {{- if .Values.prefect.secret }}
        - name: PREFECT_API_AUTH_STRING
          valueFrom: { secretKeyRef: { name: {{ .Values.prefect.secret }}, key: auth } }
        {{- end }}
        {{- if .Values.mlflow.url }}
        - { name: MLFLOW_TRACKING_URI, value: {{ .Values.mlflow.url | quote }} }
        {{- end }}
        {{- if .Values.ray.secret }}
        {{- include "ratchet.rayToken" . | nindent 8 }}
        {{- end }}
        {{- if .Values.service.kubeconfigSecret }}
        - { name: KUBECONFIG, value: /kubeconfig/config }
        {{- end }}
        {{- include "ratchet.env" . | nindent 8 }}
        {{- range $variable, $value := .Values.service.env }}
        - { name: {{ $variable }}, value: {{ $value | quote }} }
        {{- end }}
        {{- range $variable, $reference := .Values.service.secrets }}
        - name: {{ $variable }}
          valueFrom: { secretKeyRef: { name: {{ splitList "/" $reference | first }}, key: {{ splitList "/" $reference | last }} } }
        {{- end }}
      # The service gives a sign of life every ten seconds, also while it starts its lines.
      startupProbe:
        exec: { command: [sh, -c, 'test -n "$(find "$RATCHET_HOME/prefect/serve.json" -mmin -3 2>/dev/null)"'] }
        periodSeconds: 5
        failureThreshold: 120
      livenessProbe:
        exec: { command: [sh, -c, 'test -n "$(find "$RATCHET_HOME/prefect/serve.json" -mmin -3 2>/dev/null)"'] }
        periodSeconds: 30
        failureThreshold: 3
      resources: {{ toYaml .Values.service.resources | nindent 8 }}
      {{- include "ratchet.container" . | nindent 6 }}
      volumeMounts:
        - { name: home, mountPath: /home }
        - { name: keys, mountPath: /keys, readOnly: true }
        - { name: tmp, mountPath: /tmp }
        {{- range .Values.lines }}
        - { name: line-{{ .name }}, mountPath: /lines/{{ .name }}, readOnly: true }
        {{- end }}
        {{- if .Values.service.kubeconfigSecret }}
        - { name: kubeconfig, mountPath: /kubeconfig, readOnly: true }
        {{- end }}
        {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    {{- if include "ratchet.standby" . }}
    # A cache: all that must outlive a pod is in the database and in the buckets.
    - { name: home, emptyDir: { sizeLimit: {{ .Values.service.volume.size }} } }
    {{- end }}
    - name: keys
      secret:
        secretName: {{ .Values.keys.secret }}
        defaultMode: 0440
        items:
          - { key: user-keys.json, path: user-keys.json }
          - { key: anchor.key, path: anchor.key }
          {{- range .Values.lines }}
          - { key: {{ .name }}.router, path: {{ .name }}/router }
          - { key: {{ .name }}.span-keys.json, path: {{ .name }}/span-keys.json }
          {{- end }}
    - { name: tmp, emptyDir: {} }
    {{- range .Values.lines }}
    - { name: line-{{ .name }}, configMap: { name: {{ include "ratchet.name" $ }}-line-{{ .name }} } }
    {{- end }}
    {{- if .Values.service.kubeconfigSecret }}
    - { name: kubeconfig, secret: { secretName: {{ .Values.service.kubeconfigSecret }}, defaultMode: 0440 } }
    {{- end }}
    {{- with .Values.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}
