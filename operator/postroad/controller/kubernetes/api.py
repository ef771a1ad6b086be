"""Names of the API group, and of what the operator writes into Kubernetes objects; logs of what it
does.

Each line of a log names the resource whose reconcile did it. Reads, and what a reconcile finds as
it should be, get none, so that a cluster at rest logs nothing."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import Any

from postroad.ports.kubernetes import Kind
from postroad.telemetry import logs, metrics

GROUP = "postroad.dev"
VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"

FIELD_MANAGER = "postroad"
"""Owner of the fields that the operator applies; fields of other managers stay as they are."""

FINALIZER = f"{GROUP}/cleanup"
"""Keeps a resource until the operator has carried out its deletion policy."""

ADOPT = f"{GROUP}/adopt"
"""Annotation of a resource: the id of a claim of another one, which this one may take over."""

CONFIRM_DELETION = f"{GROUP}/confirm-deletion"
"""Annotation of a MailQueue or a namespace, with its name: mail that waits is deleted too."""

FORCE_DELETION = f"{GROUP}/force-deletion"
"""Annotation of a MailQueue, with its name: the deletion ends with what can be deleted now, and the
rest is listed."""

ROTATE = f"{GROUP}/rotate"
"""Annotation of a MailQueue: another value asks for another user at RabbitMQ. The Secret has the
value that it was last made for."""

USER_SINCE = f"{GROUP}/user-since"
"""Annotation of the Secret with a MailQueue's user at RabbitMQ: since when it has this one."""

CONFIGURATION_HASH = f"{GROUP}/configuration-hash"
"""Pod template annotation: the Deployment replaces its pods when it changes."""

TEMPLATE_HASH = f"{GROUP}/template-hash"
"""Annotation of a Deployment: hash of its pod template as the operator wants it."""

DECLARED_HASH = f"{GROUP}/declared-hash"
"""Annotation of a Deployment: hash of what users declare of its pods. When it is the same, a newer
operator is the cause of another template."""

UPGRADED = f"{GROUP}/upgraded"
"""Annotation of a Deployment: a newer operator brought its template, in its QueueCluster's pace."""

AUTOSCALED = f"{GROUP}/autoscaled"
"""Annotation of a Deployment: it was applied without replicas, which are an autoscaler's."""

APPLIED_HASH = f"{GROUP}/applied-hash"
"""Annotation of a child: hash of what the operator last applied. An equal hash saves the write; a
different one also shows fields that are no longer wanted."""

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""Annotation in which `kubectl apply` keeps a whole manifest."""

PIPELINE_JOB = f"{GROUP}/job"
"""Label of what runs a job of the pipeline, with the name of the job."""

TASK = f"{GROUP}/task"
"""Label of what carries out a MailQueueTask, with the name of the task."""

CONSOLE = f"{GROUP}/console"
"""Label of what is the console of a QueueCluster, with its name."""

BEGUN = f"{GROUP}/begun"
"""Annotation of a MailQueueTask: the uid under which it was begun. A copy of it, as a restore from
a backup makes one, has another, and is not done again."""

BEGUN_FOR = f"{GROUP}/begun-for"
"""Annotation of a MailQueueTask that was begun, and of what carries one out: the uid of its
MailQueue. Another one of the name is not the queue that the task was meant for."""

MANAGED_BY = "app.kubernetes.io/managed-by"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"


QUEUE_CLUSTER = Kind(API_VERSION, "QueueCluster", "queueclusters")
MAIL_QUEUE = Kind(API_VERSION, "MailQueue", "mailqueues")
MAIL_QUEUE_TASK = Kind(API_VERSION, "MailQueueTask", "mailqueuetasks")

CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SERVICE = Kind("v1", "Service", "services")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
CRON_JOB = Kind("batch/v1", "CronJob", "cronjobs")
ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
CLUSTER_ROLE_BINDING = Kind(
    "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings"
)
CHILDREN = (
    *(CONFIG_MAP, SERVICE_ACCOUNT, SERVICE, DEPLOYMENT, DISRUPTION_BUDGET),
    *(CRON_JOB, ROLE_BINDING, NETWORK_POLICY, STATEFUL_SET),
)
"""The kinds that the operator creates for a MailQueue."""

WORKLOADS = (DEPLOYMENT, STATEFUL_SET)
"""Those that make pods which run for ever. The second: of an intake with an outbox."""

AUTOSCALERS = (
    Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects"),
)
"""Of the second, KEDA's, the first is made only while it is not paused; it scales to 0 itself."""

SECRET = Kind("v1", "Secret", "secrets")
POD = Kind("v1", "Pod", "pods")
JOB = Kind("batch/v1", "Job", "jobs")
NAMESPACE = Kind("v1", "Namespace", "namespaces")
EVENT = Kind("events.k8s.io/v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Identifies an object: kind, namespace and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def console_audience(namespace: str, cluster: str) -> str:
    """Return the audience of tokens for the console of a QueueCluster."""
    return f"{GROUP}/consoles/{namespace}/{cluster}"


def has_finalizer(found: Mapping[str, Any]) -> bool:
    """True if a resource has the operator's finalizer."""
    return FINALIZER in (found["metadata"].get("finalizers") or [])


_log = logs.logger("controller")
_numbers = count(1)
_about: ContextVar[dict[str, Any] | None] = ContextVar("about", default=None)


@contextmanager
def reconciling(key: Key) -> Iterator[None]:
    """Let the lines until the end of the block name a resource, and the number of this reconcile,
    also those of tasks that begin there."""
    token = _about.set({"resource": str(key), "reconcile": next(_numbers)})
    try:
        yield
    finally:
        _about.reset(token)


def read(found: Mapping[str, Any]) -> None:
    """Let the lines from now on name the generation of the resource."""
    if (fields := _about.get()) is not None:
        fields["generation"] = found["metadata"].get("generation")


def log_action(event: str, **fields: Any) -> None:
    """Log an action at INFO."""
    _log.info(event, **(_about.get() or {}), **fields)


def log_repair(what: str, **fields: Any) -> None:
    """Log and count what another process had changed or deleted, and is as declared again: a child,
    queues, a bucket, tables, options, or a user."""
    metrics.REPAIRS.labels(what).inc()
    log_action("repaired", what=what, **fields)


def log_unexpected(event: str, **fields: Any) -> None:
    """Log the error that is being handled, with its traceback."""
    _log.exception(event, **(_about.get() or {}), **fields)
