"""What the watches know of the kinds that reconciles depend on, as indexes.

Kopf keeps the indexes. They say when and how much to reconcile; what a reconcile acts on, it reads
from the API server, because an index may be behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from postroad.controller.api import DEPLOYMENT, MAIL_QUEUE, QUEUE_CLUSTER, Key
from postroad.controller.finalizers import has_finalizer


class User(NamedTuple):
    """A MailQueue that refers to a QueueCluster. `state` changes with its spec, and when it is held
    or being deleted; not with its status."""

    key: Key
    state: tuple[object, ...]


class Child(NamedTuple):
    """A version of a child. `is_rolling`: it is a Deployment whose pods are being replaced."""

    kind: str
    name: str
    version: str
    is_rolling: bool = False


class Indexes:
    """The indexes of a running operator. `users` and `classes` by the key of the QueueCluster,
    `children` by the key of the MailQueue."""

    def __init__(self) -> None:
        self.users: Mapping[Key, Collection[User]] = {}
        self.classes: Mapping[Key, Collection[str]] = {}
        self.children: Mapping[Key, Collection[Child]] = {}

    def class_of(self, cluster: Key) -> str | None:
        """Return the class of a QueueCluster; None where there is none, or its watch is behind."""
        return next(iter(self.classes[cluster])) if cluster in self.classes else None

    def users_of(self, cluster: Key) -> frozenset[User]:
        """Return the MailQueues that refer to a QueueCluster, allowed or not."""
        return frozenset(self.users[cluster]) if cluster in self.users else frozenset()

    def children_of(self, queue: Key) -> frozenset[Child]:
        """Return the children of a MailQueue."""
        return frozenset(self.children[queue]) if queue in self.children else frozenset()


def cluster_of(body: Mapping[str, Any]) -> Key:
    """Return the key of the QueueCluster that a MailQueue refers to."""
    reference = body["spec"].get("clusterRef") or {}
    namespace = reference.get("namespace") or body["metadata"]["namespace"]
    return Key(QUEUE_CLUSTER.name, namespace, reference.get("name", ""))


def as_user(body: Mapping[str, Any]) -> dict[Key, User]:
    """Return the entry of a MailQueue in the index of users."""
    metadata = body["metadata"]
    key = Key(MAIL_QUEUE.name, metadata["namespace"], metadata["name"])
    ending = metadata.get("deletionTimestamp")
    state = (metadata["uid"], metadata["generation"], ending, has_finalizer(body))
    return {cluster_of(body): User(key, state)}


def owner_of(body: Mapping[str, Any]) -> Key | None:
    """Return the key of the MailQueue that owns an object."""
    metadata = body["metadata"]
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("controller") and owner["kind"] == MAIL_QUEUE.name:
            return Key(MAIL_QUEUE.name, metadata["namespace"], owner["name"])
    return None


def as_child(body: Mapping[str, Any]) -> dict[Key, Child]:
    """Return the entry of an object in the index of children; none for what no MailQueue owns."""
    owner, metadata = owner_of(body), body["metadata"]
    if owner is None:
        return {}
    rolling = body["kind"] == DEPLOYMENT.name and is_rolling(body)
    return {owner: Child(body["kind"], metadata["name"], metadata["resourceVersion"], rolling)}


def is_rolling(deployment: Mapping[str, Any]) -> bool:
    """Whether a Deployment has pods of an older template, or too few of the newest. Pods that are
    not ready for a reason of their own hold up no other MailQueue."""
    status = deployment.get("status") or {}
    wanted = deployment["spec"].get("replicas", 1)
    updated = status.get("updatedReplicas") or 0
    seen = status.get("observedGeneration", -1) >= deployment["metadata"]["generation"]
    return not seen or updated < wanted or (status.get("replicas") or 0) > updated
