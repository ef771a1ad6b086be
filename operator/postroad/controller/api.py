"""Names of the API group and of everything the operator writes into Kubernetes objects."""

from __future__ import annotations

from dataclasses import dataclass

GROUP = "postroad.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

FIELD_MANAGER = "postroad"
"""Owner of the fields that the operator applies; other managers' fields are left alone."""

FINALIZER = f"{GROUP}/cleanup"
"""Keeps a resource until the operator has done what its deletion asks for."""

CONFIGURATION_HASH = f"{GROUP}/configuration-hash"
"""Pod template annotation: a change of it rolls the pods."""

APPLIED_HASH = f"{GROUP}/applied-hash"
"""Annotation of a child: what the operator last applied, so that an unchanged child is not written
again and a field that is no longer wanted is noticed."""

MANAGED_BY = "app.kubernetes.io/managed-by"
INSTANCE = "app.kubernetes.io/instance"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind and where the API server serves it."""

    api_version: str
    name: str
    plural: str

    @property
    def prefix(self) -> str:
        """The path that the API group is served under."""
        return f"/{'apis' if '/' in self.api_version else 'api'}/{self.api_version}"


QUEUE_CLUSTER = Kind(API_VERSION, "QueueCluster", "queueclusters")
MAIL_QUEUE = Kind(API_VERSION, "MailQueue", "mailqueues")

CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SERVICE = Kind("v1", "Service", "services")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
CHILDREN = (CONFIG_MAP, SERVICE_ACCOUNT, SERVICE, DEPLOYMENT, DISRUPTION_BUDGET)
"""Every kind that the operator makes for a MailQueue."""

SECRET = Kind("v1", "Secret", "secrets")
POD = Kind("v1", "Pod", "pods")
NAMESPACE = Kind("v1", "Namespace", "namespaces")
EVENT = Kind("events.k8s.io/v1", "Event", "events")


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which object: a kind's name, a namespace and a name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"
