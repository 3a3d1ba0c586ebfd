{{- define "firstfault.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "firstfault.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "firstfault.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "firstfault.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "firstfault.selector" -}}
app.kubernetes.io/name: {{ include "firstfault.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "firstfault.labels" -}}
{{ include "firstfault.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: firstfault
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "firstfault.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "firstfault.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "firstfault.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "firstfault.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "firstfault.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Environment, from the store's secret and of the extra variables. */}}
{{- define "firstfault.envFrom" -}}
{{- with .Values.store.existingSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}

{{/* The rights that the watched namespaces give: pods and their logs, events, and the job kinds of the table. */}}
{{- define "firstfault.rules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch{{ if .Values.finalizer.enabled }}, patch{{ end }}]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [list{{ if .Values.controller.events }}, create, patch{{ end }}]
{{- $verbs := ternary "[get, patch]" "[get]" .Values.controller.annotate }}
- apiGroups: [batch]
  resources: [jobs]
  verbs: {{ $verbs }}
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: {{ $verbs }}
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: {{ $verbs }}
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs]
  verbs: {{ $verbs }}
- apiGroups: [kubeflow.org]
  resources: [pytorchjobs, mpijobs, tfjobs, paddlejobs, jaxjobs]
  verbs: {{ $verbs }}
- apiGroups: [ray.io]
  resources: [rayjobs, rayclusters]
  verbs: {{ $verbs }}
- apiGroups: [batch.volcano.sh]
  resources: [jobs]
  verbs: {{ $verbs }}
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: {{ $verbs }}
- apiGroups: [argoproj.io]
  resources: [workflows]
  verbs: {{ $verbs }}
{{- end }}
