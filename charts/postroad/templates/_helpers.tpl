{{- define "postroad.class" -}}
{{ if ne .Values.class "default" }}-{{ .Values.class }}{{ end }}
{{- end }}

{{- /* Roles follow the class, not the release and no override: of two releases with one class, Helm
refuses the second, because the ClusterRole is the first one's. Each class has one leader. */}}
{{- define "postroad.role" -}}
postroad-operator{{ include "postroad.class" . }}
{{- end }}

{{- define "postroad.pipelineRole" -}}
postroad-pipeline{{ include "postroad.class" . }}
{{- end }}

{{- define "postroad.consoleRole" -}}
postroad-console{{ include "postroad.class" . }}
{{- end }}

{{- define "postroad.name" -}}
{{- $name := printf "%s%s" (.Values.nameOverride | default "postroad") (include "postroad.class" .) -}}
{{- include "postroad.bounded" $name -}}
{{- end }}

{{- define "postroad.fullname" -}}
{{- $usual := printf "%s-operator%s" (.Values.nameOverride | default "postroad") (include "postroad.class" .) -}}
{{- include "postroad.bounded" (.Values.fullnameOverride | default $usual) -}}
{{- end }}

{{- define "postroad.bounded" -}}
{{- if gt (len .) 63 }}{{ fail (printf "%s has more than 63 characters: choose a shorter nameOverride or class" .) }}{{ end -}}
{{ . }}
{{- end }}

{{- define "postroad.serviceAccount" -}}
{{- with .Values.serviceAccount -}}
{{- if .create -}}
{{ .name | default (include "postroad.fullname" $) }}
{{- else -}}
{{ required "serviceAccount.name: name the ServiceAccount that is there, since serviceAccount.create is false" .name }}
{{- end }}
{{- end }}
{{- end }}

{{- define "postroad.selector" -}}
app.kubernetes.io/name: {{ include "postroad.name" . | toYaml }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "postroad.labels" -}}
{{ include "postroad.selector" . }}
{{- with .Values.commonLabels }}{{ toYaml . | nindent 0 }}{{ end }}
{{- end }}

{{- /* Labels of an object for monitoring (list $ labels), each once: these stand above commonLabels. */}}
{{- define "postroad.monitoringLabels" -}}
{{- $root := first . -}}
{{ include "postroad.selector" $root }}
{{- with mergeOverwrite (dict) ($root.Values.commonLabels | default dict) (last . | default dict) }}{{ toYaml . | nindent 0 }}{{ end }}
{{- end }}

{{- /* Metadata of a monitor or of rules. */}}
{{- define "postroad.monitoringMetadata" -}}
name: {{ include "postroad.fullname" . | toYaml }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "postroad.monitoringLabels" (list . .Values.monitoring.labels) | nindent 2 }}
{{- end }}

{{- /* Metadata of an object, by its name, in the namespace of the release. */}}
{{- define "postroad.metadata" -}}
name: {{ include "postroad.fullname" . | toYaml }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "postroad.labels" . | nindent 2 }}
{{- end }}

{{- /* An image (list $ registry reference). global.imageRegistry takes the place of the registry, also
of one that the reference begins with. */}}
{{- define "postroad.reference" -}}
{{- $global := (index . 0).Values.global.imageRegistry -}}
{{- $registry := index . 1 -}}
{{- $reference := index . 2 -}}
{{- if $global -}}
{{ $global }}/{{ regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $reference "" }}
{{- else -}}
{{ with $registry }}{{ . }}/{{ end }}{{ $reference }}
{{- end }}
{{- end }}

{{- define "postroad.image" -}}
{{- $image := .Values.image -}}
{{- $repository := required "image.repository: name the repository to which you pushed postroad's image; there is no public one" $image.repository -}}
{{- $end := printf ":%s" ($image.tag | default .Chart.AppVersion) -}}
{{- with $image.digest }}{{ $end = printf "@%s" . }}{{ end -}}
{{- include "postroad.reference" (list . $image.registry (print $repository $end)) -}}
{{- end }}

{{- /* Fields of a pod's spec (list $ field...): those of each pod, and the values of these names. */}}
{{- define "postroad.pod" -}}
{{- $values := (first .).Values -}}
{{- $pod := dict "enableServiceLinks" false "securityContext" $values.podSecurityContext -}}
{{- range $field := concat (list "imagePullSecrets" "nodeSelector" "tolerations" "dnsPolicy" "dnsConfig") (rest .) }}
{{- with index $values $field }}{{ $_ := set $pod $field . }}{{ end }}
{{- end }}
{{- toYaml $pod }}
{{- end }}

{{- /* The image of a container, and how it is run. */}}
{{- define "postroad.container" -}}
image: {{ include "postroad.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}

{{- /* A probe (list path timings). */}}
{{- define "postroad.probe" -}}
{{ toYaml (merge (dict "httpGet" (dict "path" (first .) "port" "health")) (last .)) }}
{{- end }}

{{- /* Constraints without a labelSelector select the operator's pods. */}}
{{- define "postroad.spread" -}}
{{- range .Values.topologySpreadConstraints }}
{{- $own := dict "labelSelector" (dict "matchLabels" (include "postroad.selector" $ | fromYaml)) }}
- {{ toYaml (hasKey . "labelSelector" | ternary . (merge $own .)) | nindent 2 | trim }}
{{- end }}
{{- end }}

{{- define "postroad.env" -}}
- name: POSTROAD_OPERATOR_IMAGE # what workers and intake run
  {{- with .Values.queueImage }}
  value: {{ include "postroad.reference" (list $ "" .) }}
  {{- else }}
  value: {{ include "postroad.image" . }}
  {{- end }}
{{- with .Values.pipelineImage }}
- name: POSTROAD_OPERATOR_PIPELINE_IMAGE # what jobs of the pipeline run
  value: {{ include "postroad.reference" (list $ "" .) }}
{{- end }}
{{- with .Values.queueImagePullSecrets }}
- name: POSTROAD_OPERATOR_PULL_SECRETS
  value: {{ range $at, $each := . }}{{ if $at }} {{ end }}{{ $each.name }}{{ end }}
{{- end }}
- name: POSTROAD_OPERATOR_LEASE_NAMESPACE
  value: {{ .Release.Namespace }}
- name: POSTROAD_OPERATOR_CLASS
  value: {{ .Values.class | quote }}
{{- with .Values.watchNamespaces }}
- name: POSTROAD_OPERATOR_NAMESPACES
  value: {{ join " " . | quote }}
{{- end }}
{{- with .Values.tasks }}
- name: POSTROAD_OPERATOR_TASKS
  value: {{ . | quote }}
{{- end }}
{{- if .Values.ambientCredentials }}
- name: POSTROAD_OPERATOR_AMBIENT_CREDENTIALS
  value: "true"
{{- end }}
- name: POSTROAD_LOG_LEVEL
  value: {{ .Values.logLevel }}
- name: POSTROAD_HEALTH_HOST # the kubelet asks at the pod's address
  value: "*"
{{- end }}

{{- /* Kubernetes takes the last of two variables of one name without a word, and refuses the rest when
the release is half installed. */}}
{{- define "postroad.checkExtras" -}}
{{- $names := list }}
{{- range concat (include "postroad.env" . | fromYamlArray) (.Values.extraEnv | default list) }}
{{- if eq .name "POSTROAD_HEALTH_PORT" }}{{ fail "extraEnv: POSTROAD_HEALTH_PORT: probes and the Service ask port 8080: leave it out" }}{{ end }}
{{- if has .name $names }}{{ fail (printf "extraEnv: %s is there already: set the chart's value for it, or name it once" .name) }}{{ end }}
{{- $names = append $names .name }}
{{- end }}
{{- $volumes := list "tmp" }}
{{- range .Values.extraVolumes }}
{{- if has .name $volumes }}{{ fail (printf "extraVolumes: %s is there already: choose another name" .name) }}{{ end }}
{{- $volumes = append $volumes .name }}
{{- end }}
{{- $paths := list "/tmp" }}
{{- range .Values.extraVolumeMounts }}
{{- $path := clean .mountPath }}
{{- if not (has .name $volumes) }}{{ fail (printf "extraVolumeMounts: extraVolumes has no %s" .name) }}{{ end }}
{{- if has $path $paths }}{{ fail (printf "extraVolumeMounts: %s is there already: choose another path" $path) }}{{ end }}
{{- $paths = append $paths $path }}
{{- end }}
{{- end }}

{{- /* A Role and its binding to the operator (list $ name namespace rules); those of the cluster where
the namespace is empty. */}}
{{- define "postroad.grant" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- $namespace := index . 2 }}
{{- $scope := ternary "" "Cluster" (not (empty $namespace)) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $scope }}Role
metadata:
  name: {{ $name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "postroad.labels" $root | nindent 4 }}
rules:
  {{- index . 3 | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $scope }}RoleBinding
metadata:
  name: {{ $name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "postroad.labels" $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $scope }}Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "postroad.serviceAccount" $root | toYaml }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}

{{- define "postroad.namespacedRules" -}}
# Its own resources: read them, set and take its finalizer, write their status.
- apiGroups: [postroad.dev]
  resources: [mailqueues, queueclusters]
  verbs: [get, list, watch, patch]
# Tasks that have finished are deleted when their time is over.
- apiGroups: [postroad.dev]
  resources: [mailqueuetasks]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [postroad.dev]
  resources: [mailqueues/status, mailqueuetasks/status, queueclusters/status]
  verbs: [update]
# To own children with blockOwnerDeletion where the API server enforces it.
- apiGroups: [postroad.dev]
  resources: [mailqueues/finalizers, mailqueuetasks/finalizers, queueclusters/finalizers]
  verbs: [update]
# Children of MailQueues, and consoles of QueueClusters.
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# Jobs of the pipeline and of tasks: their CronJobs, and how the last runs went.
- apiGroups: [batch]
  resources: [cronjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
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

{{- define "postroad.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, patch]
{{- if .Values.watchNamespaces }}
# The list of what deletions left behind.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch]
{{- end }}
{{- end }}

{{- define "postroad.executorsRules" -}}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [create, patch, delete]
# Beside its own rights, the operator can give away this role alone.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: [{{ include "postroad.pipelineRole" . }}]
  verbs: [bind]
{{- end }}

{{- define "postroad.consolesRules" -}}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterrolebindings]
  resourceNames: [{{ include "postroad.consoleRole" . }}]
  verbs: [get, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: [{{ include "postroad.consoleRole" . }}]
  verbs: [bind]
{{- end }}

{{- define "postroad.usersRules" -}}
# Kubernetes cannot bound this to names: the operator writes those that its MailQueues own.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch]
{{- end }}
