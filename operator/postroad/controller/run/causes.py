"""Follows the kinds that reconciles depend on, and finds the resources that an event of a watch
makes due. The event only names the object: the reconcile reads its state anew.

Assigns resources to operators, by the class that its QueueCluster names.

One operator of a class leads, so that no two have effects on one QueueCluster, or on a MailQueue
that refers to it. The class of a QueueCluster cannot be changed. Source: ADR 0041."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from postroad.controller import reads
from postroad.controller.kubernetes.api import (
    MAIL_QUEUE,
    MAIL_QUEUE_TASK,
    MANAGED_BY,
    QUEUE_CLUSTER,
    Key,
    has_finalizer,
    log_unexpected,
)
from postroad.controller.mailqueue.deletion_progress import answers
from postroad.controller.run.workqueue import Urgency, Workqueue
from postroad.controller.spec.cluster import DEFAULT_CLASS, class_of_cluster
from postroad.controller.spec.queue_resource import adopted_by, asks_to_rotate, cluster_of
from postroad.controller.spec.task import queue_of_task
from postroad.errors import KubernetesRefused
from postroad.ports.kubernetes import COMPLETE, DELETED, LISTED, Kind, Kubernetes, Object

Fingerprint = tuple[tuple[object, ...], tuple[object, ...]]
"""Of the spec; of what else changes."""


class Causes:
    """Queues resources for a reconcile by the events of the watches."""

    def __init__(
        self, api: reads.WatchedKubernetes, indexes: reads.Indexes, work: Workqueue[Key]
    ) -> None:
        self._api = api
        self._indexes = indexes
        self._work = work
        self._fingerprints: dict[Key, Fingerprint] = {}
        self._deleted: dict[Key, Object] = {}
        """Resources that a watch saw deleted, as they were last."""
        self._configured: set[Key] = set()
        """MailQueues whose status has a configuration, which MailQueueTasks wait for."""

    def forget(self, key: Key) -> None:
        """Forget a resource that is gone. Idempotent."""
        self._fingerprints.pop(key, None)
        self._configured.discard(key)

    def deleted(self, key: Key) -> Object | None:
        """Return a resource that a watch saw deleted, as it was last, until `announced`."""
        return self._deleted.get(key)

    def announced(self, key: Key, deleted: Object) -> None:
        """Forget a deletion, unless another resource of this name was deleted meanwhile."""
        if self._deleted.get(key) is deleted:
            del self._deleted[key]

    def on_event(self, kind: Kind, body: Object, *, gone: bool, routine: bool) -> None:
        """Keep an object that was added, changed or deleted, and queue what depends on it: a
        MailQueue or QueueCluster itself, the owner of a child. `routine`: it was there when the
        watch began."""
        if not gone:
            reads.version_of(body)  # raises before an index has what no read could put in order
        self._indexes.put(body, gone=gone)
        self._api.notice(body, gone=gone)
        if kind in reads.OWN:
            self._on_own(kind, body, gone=gone, routine=routine)
        elif (owner := reads.owner_of(body)) is not None:
            if not routine:
                self._work.add(owner, Urgency.CHILD)
            elif owner.kind == MAIL_QUEUE_TASK.name:  # which may be gone
                self._work.add(owner, Urgency.ROUTINE)

    def _on_own(self, kind: Kind, body: Object, *, gone: bool, routine: bool) -> None:
        key = reads.key_of(body)
        before = self._fingerprints.pop(key, None)
        if gone and kind is not MAIL_QUEUE_TASK:
            self._deleted[key] = body
        elif not gone:
            self._fingerprints[key] = now = fingerprint_of(body)
            if kind is MAIL_QUEUE and self._is_configured_now(key, body):
                self._wake_tasks(key)
            if before == now:
                return  # only the status changed, which the operator itself writes
        self._work.add(key, Urgency.ROUTINE if routine else Urgency.CHANGE)
        if kind is MAIL_QUEUE:
            self._work.add(cluster_of(body), Urgency.ROUTINE)
            self._wake_tasks(key)
        elif gone or before is None or before[0] != now[0]:
            for user in self._indexes.users_of(key):
                self._work.add(user.key, Urgency.ROUTINE)

    def _is_configured_now(self, key: Key, queue: Object) -> bool:
        """True if the status of a MailQueue has a configuration, and had none before."""
        known = len(self._configured)
        if "configuration" in (queue.get("status") or {}):
            self._configured.add(key)
        else:
            self._configured.discard(key)
        return len(self._configured) > known

    def _wake_tasks(self, queue: Key) -> None:
        for each in self._indexes.tasks.get(queue, ()):
            self._work.add(each, Urgency.CHILD)

    async def find_missed_deletions(self) -> None:
        """Handle the deletions that fell into an interruption of a watch, which none brings.
        Raises: KubernetesError."""
        for kind, body in await self._api.missed_deletions():
            try:
                self.on_event(kind, body, gone=True, routine=False)
            except Exception:  # of one object: the others are not found a second time
                log_unexpected("a missed deletion was not handled", kind=kind.name)


async def follow(
    api: Kubernetes, causes: Causes, namespaces: Sequence[str], indexed: asyncio.Event
) -> None:
    """Follow all kinds, in these namespaces or in all, until cancelled; set `indexed` once the
    indexes have all objects that there were at the begin."""
    left = {(kind, each) for kind in reads.WATCHED for each in namespaces or (None,)}

    async def follow_kind(kind: Kind, namespace: str | None) -> None:
        labels = "" if kind in reads.OWN else f"{MANAGED_BY}=postroad"
        async for happened, body in api.watch(kind, namespace, labels):
            if happened == COMPLETE:
                left.discard((kind, namespace))
                if not left:
                    indexed.set()
                continue
            gone, routine = happened == DELETED, happened == LISTED
            try:
                causes.on_event(kind, body, gone=gone, routine=routine)
            except Exception:  # of one object, which must not end the watch of all others
                log_unexpected("an event was not handled", kind=kind.name)

    async with asyncio.TaskGroup() as group:
        for kind, namespace in [*left]:
            group.create_task(follow_kind(kind, namespace))


def fingerprint_of(body: Mapping[str, Any]) -> Fingerprint:
    """Return what changes of a resource when anything but its status does: the spec, whether it is
    being deleted or held, what confirms its deletion, what asks for another user, and which claim
    it may take over. The operator writes the status, so its own write must not start a reconcile.
    """
    metadata = body["metadata"]
    asked = answers(body), asks_to_rotate(body), adopted_by(body)
    return (
        (metadata["uid"], metadata.get("generation")),
        (metadata.get("deletionTimestamp"), has_finalizer(body), asked),
    )


def lease_name(operator_class: str) -> str:
    """Return the name of the Lease that the operators of a class share.

    >>> lease_name("default")
    'postroad-operator-default'
    """
    return f"postroad-operator-{operator_class}"


def pipeline_role(operator_class: str) -> str:
    """Return the name of the ClusterRole that an installation of a class ships for drivers.

    >>> pipeline_role("default"), pipeline_role("canary")
    ('postroad-pipeline', 'postroad-pipeline-canary')
    """
    end = "" if operator_class == DEFAULT_CLASS else f"-{operator_class}"
    return f"postroad-pipeline{end}"


def console_role(operator_class: str) -> str:
    """Return the name of the ClusterRole, and of its binding, that an installation of a class ships
    for consoles.

    >>> console_role("default"), console_role("canary")
    ('postroad-console', 'postroad-console-canary')
    """
    return pipeline_role(operator_class).replace("pipeline", "console", 1)


class OperatorClass:
    """The class of this operator."""

    def __init__(self, name: str, api: Kubernetes, indexes: reads.Indexes) -> None:
        self._name = name
        self._api = api
        self._indexes = indexes

    async def has(self, found: Mapping[str, Any]) -> bool:
        """True if a resource is for this operator. A MailQueue whose QueueCluster is missing is for
        the operator that reported about it before, else for one of the default class: another
        one could belong to it. So is a MailQueueTask without a MailQueue; else it goes with that.
        Raises: KubernetesUnavailable."""
        if found["kind"] == QUEUE_CLUSTER.name:
            return class_of_cluster(found) == self._name
        if found["kind"] == MAIL_QUEUE_TASK.name:
            place = queue_of_task(found)
            indexed = sorted(self._indexes.at(place), key=reads.version_of)
            queue: Object | None = indexed[-1] if indexed else None
            if queue is None:  # applied with its task, it may be known to the API server alone
                queue = await self._api.get(MAIL_QUEUE, place.namespace, place.name)
            return await self.has(queue) if queue else self._name == DEFAULT_CLASS
        of_cluster = await self._class_of_cluster_of(found)
        reported = (found.get("status") or {}).get("operatorClass")
        return (of_cluster or reported or DEFAULT_CLASS) == self._name

    async def _class_of_cluster_of(self, queue: Mapping[str, Any]) -> str | None:
        key = cluster_of(queue)
        indexed = self._indexes.class_of(key)
        if indexed is not None:
            return indexed
        try:
            cluster = await self._api.get(QUEUE_CLUSTER, key.namespace, key.name)
        except KubernetesRefused:  # the reconcile gets the same answer, and reports it
            return None
        return None if cluster is None else class_of_cluster(cluster)
