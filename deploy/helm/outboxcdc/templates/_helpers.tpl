{{- define "outboxcdc.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains "outboxcdc" .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-outboxcdc" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "outboxcdc.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default "outboxcdc" | trunc 63 }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "outboxcdc.labels" -}}
{{ include "outboxcdc.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{- define "outboxcdc.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "outboxcdc.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "outboxcdc.image" -}}
{{- $repository := required "image.repository is required: outboxcdc publishes no image yet. Build one with make image, push it to your registry, and set image.repository and image.tag" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* What the pods of the daemon and of the audit have in common. */ -}}
{{- define "outboxcdc.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "outboxcdc.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
privileged: false
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "outboxcdc.secretEnv" -}}
{{- range $i, $s := .Values.secretFiles }}
- {name: {{ printf "OUTBOXCDC_%s" ($s.setting | replace "." "_" | upper) }}, value: {{ printf "/run/secrets/outboxcdc/%d/%s" $i $s.key | quote }}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "outboxcdc.volumeMounts" -}}
- {name: config, mountPath: /etc/outboxcdc, readOnly: true}
{{- range $i, $s := .Values.secretFiles }}
# A folder and not a single file, for only those follow a Secret that changes.
- {name: {{ printf "secret-%d" $i }}, mountPath: {{ printf "/run/secrets/outboxcdc/%d" $i }}, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "outboxcdc.volumes" -}}
- name: config
  configMap: {name: {{ include "outboxcdc.fullname" . }}}
{{- range $i, $s := .Values.secretFiles }}
- name: {{ printf "secret-%d" $i }}
  secret:
    secretName: {{ $s.secret }}
    defaultMode: 0440
    items:
      - {key: {{ $s.key | quote }}, path: {{ $s.key | quote }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Not the selector of the daemon: its Service and its PodDisruptionBudget must not count the pods of a CronJob. The arguments are the
root and the name of the command. */ -}}
{{- define "outboxcdc.jobSelector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ printf "%s-%s" ($root.Values.nameOverride | default "outboxcdc" | trunc 56) (index . 1) }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- end -}}

{{- define "outboxcdc.jobLabels" -}}
{{- $root := index . 0 -}}
{{ include "outboxcdc.jobSelector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_") }}
{{- end -}}

{{- /* What follows the name of a CronJob, for each shard: "-0,-1"; "" without shards. */ -}}
{{- define "outboxcdc.shards" -}}
{{- range $n, $shard := .Values.shards -}}
{{- if $n -}},{{- end -}}-{{ $n }}
{{- end -}}
{{- end -}}
