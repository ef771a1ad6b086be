{{- /* Names follow the class, not the release: of two releases with one class, Helm refuses the
second, because the ClusterRole is the first one's. Each class has one leader. */}}
{{- define "postroad.name" -}}
postroad-operator{{ if ne .Values.class "default" }}-{{ .Values.class }}{{ end }}
{{- end }}

{{- define "postroad.selector" -}}
app.kubernetes.io/name: postroad{{ if ne .Values.class "default" }}-{{ .Values.class }}{{ end }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "postroad.image" -}}
{{- $image := .Values.image -}}
{{- $repository := required "image.repository: name the repository to which you pushed postroad's image; there is no public one" $image.repository -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "postroad.pipelineRole" -}}
postroad-pipeline{{ if ne .Values.class "default" }}-{{ .Values.class }}{{ end }}
{{- end }}

{{- define "postroad.subjects" -}}
- kind: ServiceAccount
  name: {{ include "postroad.name" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "postroad.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "postroad.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "postroad.namespacedRules" -}}
# Its own resources: read them, set and take its finalizer, write their status.
- apiGroups: [postroad.dev]
  resources: [mailqueues, queueclusters]
  verbs: [get, list, watch, patch]
- apiGroups: [postroad.dev]
  resources: [mailqueues/status, queueclusters/status]
  verbs: [update]
# To own children with blockOwnerDeletion where the API server enforces it.
- apiGroups: [postroad.dev]
  resources: [mailqueues/finalizers]
  verbs: [update]
# Children of MailQueues.
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# Jobs of the pipeline: their CronJobs, and how the last runs went.
- apiGroups: [batch]
  resources: [cronjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list]
# Those of jobs with executors; pipelineExecutors has the right to make them.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [get, list, watch]
# Whether an autoscaler scales a Deployment that another process scaled.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [list]
# Credentials and certificates, by the names that QueueClusters and MailQueues give; Secrets are
# never listed or watched.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
# Whether programs of a queue that is deleted still run, and what a job wrote in the end.
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, get, patch] # one that is repeated is counted
{{- end }}

{{- define "postroad.clusterRules" -}}
# Labels of namespaces, for spec.allowedNamespaces.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- end }}
