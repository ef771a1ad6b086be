"""MailQueues that use a QueueCluster: those that refer to it, of namespaces that it allows, as many
as its quota has places for.

A quota takes nothing away: MailQueues that have a configuration keep their places, and Deployments
their replicas, also when the quota is made smaller. What comes last is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from postroad.controller.cluster.plans import QueuePlace
from postroad.controller.kubernetes.api import MAIL_QUEUE, NAMESPACE, QUEUE_CLUSTER, Key
from postroad.controller.reads import PATIENCE, Absences, Reads
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.parts import AllowedNamespaces, allowed_by, allows
from postroad.controller.spec.queue_resource import Queue, own_bucket, referring
from postroad.domain.values.instants import format_duration
from postroad.errors import ClusterNotAllowed, QuotaExceeded
from postroad.ports.kubernetes import Kubernetes, Object


def with_a_place(
    users: Sequence[Object], most: int | None, known: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return the places of the MailQueues that have one: those with a configuration, then those
    that are `known` to have one, then the others as they were created. `most` None: all."""

    def place(each: Mapping[str, Any]) -> tuple[bool, bool, str, str, str]:
        metadata = each["metadata"]
        return (
            not has_configuration(each),
            place_of(each) not in known,
            metadata["creationTimestamp"],
            metadata["namespace"],
            metadata["name"],
        )

    configured = sum(map(has_configuration, users))
    places = len(users) if most is None else max(most, configured)
    return frozenset(map(place_of, sorted(users, key=place)[:places]))


def place_of(queue: Mapping[str, Any]) -> str:
    """Return what a place is for: a name, as a MailQueue that is replaced has another uid."""
    return f"{queue['metadata']['namespace']}/{queue['metadata']['name']}"


def has_configuration(queue: Mapping[str, Any]) -> bool:
    """True if a MailQueue has begun, so that it has something on the servers."""
    return "configuration" in (queue.get("status") or {})


def granted_workers(wanted: int, most: int | None, present: int) -> int:
    """Return how many workers a MailQueue gets. `present`: that it has."""
    return wanted if most is None else min(wanted, max(most, present))


@dataclass(frozen=True, slots=True)
class _Places:
    generation: int
    held: frozenset[str]
    asked: frozenset[str]


class Quotas:
    """The places at each QueueCluster as they were last counted, so that a MailQueue which is
    refused and asks again costs no list of all."""

    def __init__(self, absences: Absences) -> None:
        self._absences = absences
        self._places: dict[str, _Places] = {}

    def count(
        self, cluster: Mapping[str, Any], spec: QueueClusterSpec, users: Sequence[Object]
    ) -> None:
        """Count the places anew, with the MailQueues that a QueueCluster allows. One that is gone
        for a moment keeps its place."""
        metadata, most = cluster["metadata"], spec.quota.queues
        known = self._places.get(metadata["uid"])
        held = known.held if known else frozenset()
        there = set(map(place_of, users))
        kept = {each for each in held - there if not self._absences.lasts((metadata["uid"], each))}
        for each in held - kept:
            self._absences.end((metadata["uid"], each))
        left = None if most is None else max(0, most - len(kept))
        self._places[metadata["uid"]] = _Places(
            metadata["generation"],
            with_a_place(users, left, held) | kept,
            frozenset(each["metadata"]["uid"] for each in users),
        )

    def is_counted(self, cluster: Mapping[str, Any], uid: str) -> bool:
        """True if a MailQueue was there when the places were last counted."""
        known = self._places.get(cluster["metadata"]["uid"])
        return (
            known is not None
            and known.generation == cluster["metadata"]["generation"]
            and uid in known.asked
        )

    def require(self, cluster: Mapping[str, Any], spec: QueueClusterSpec, place: str) -> None:
        """Raises: QuotaExceeded for a MailQueue that has no place."""
        metadata = cluster["metadata"]
        if place not in self._places[metadata["uid"]].held:
            raise QuotaExceeded(
                f"QueueCluster {metadata['namespace']}/{metadata['name']} has places for "
                f"{spec.quota.queues} MailQueues, and others came first",
                hint="raise its spec.quota.queues, or delete another MailQueue, whose place is "
                f"free after {format_duration(PATIENCE)}",
            )

    def forget(self, uid: str) -> None:
        """Forget a QueueCluster that is gone. Idempotent."""
        known = self._places.pop(uid, None)
        for each in known.held if known else ():
            self._absences.end((uid, each))


class ClusterUsers:
    """Finds the MailQueues of QueueClusters. `certain`: what misses none, where `api` has them from
    memory. `reads`: reads of namespaces. `namespaces`: the watched ones; none: all."""

    def __init__(
        self,
        api: Kubernetes,
        certain: Kubernetes,
        reads: Reads,
        namespaces: Sequence[str],
        absences: Absences,
    ) -> None:
        self._api = api
        self._certain = certain
        self._reads = reads
        self._namespaces = tuple(namespaces)
        self.quotas = Quotas(absences)

    async def admit(self, found: Object, queue: Queue, *, begun: bool) -> None:
        """Check that a MailQueue may use a QueueCluster. One that has `begun` keeps its place under
        the quota. Raises: ClusterNotAllowed, QuotaExceeded, pydantic.ValidationError."""
        own, name = found["metadata"]["namespace"], found["metadata"]["name"]
        asking = queue.name.namespace
        if not await self._allows(allowed_by(found), own, asking):
            raise ClusterNotAllowed(
                f"QueueCluster {own}/{name} does not allow MailQueues of namespace {asking}",
                hint="change its spec.allowedNamespaces, or use another cluster",
            )
        if begun:
            return
        spec = QueueClusterSpec.model_validate(found["spec"])
        if spec.quota.queues is None:
            return
        if not self.quotas.is_counted(found, queue.uid):
            self.quotas.count(found, spec, await self.allowed(own, name, spec.allowed_namespaces))
        self.quotas.require(found, spec, f"{queue.name.namespace}/{queue.name.name}")

    async def referring(
        self, namespace: str, name: str, *, certain: bool = False
    ) -> Sequence[Object]:
        """Return the MailQueues of the watched namespaces that refer to a QueueCluster. `certain`:
        also those that no watch has brought yet."""
        watched = await self._watched(self._certain if certain else self._api)
        return referring(watched, Key(QUEUE_CLUSTER.name, namespace, name))

    async def others_with_bucket(self, place: QueuePlace) -> Sequence[Object]:
        """Return other MailQueues that stay, whose own bucket has the same name as that of a
        queue. Those of another QueueCluster count too, because it may have the same store."""
        return [
            each
            for each in await self._watched(self._certain)
            if each["metadata"]["uid"] != place.uid
            and "deletionTimestamp" not in each["metadata"]
            and own_bucket(each, place.bucket_prefix) == place.bucket
        ]

    async def _watched(self, api: Kubernetes) -> Sequence[Object]:
        return [
            each
            for watched in self._namespaces or (None,)
            for each in await api.list(MAIL_QUEUE, watched)
        ]

    async def allowed(
        self, namespace: str, name: str, allowed: AllowedNamespaces, *, certain: bool = False
    ) -> Sequence[Object]:
        """Return the MailQueues that refer to a QueueCluster and that it allows. Others have no
        effect on it, since every user who may create a MailQueue somewhere can refer to it.
        `certain`: also those that no watch has brought yet."""
        watched = await self._watched(self._certain if certain else self._api)
        found = referring(watched, Key(QUEUE_CLUSTER.name, namespace, name))
        asking = {each["metadata"]["namespace"] for each in found}
        let_in = {each for each in asking if await self._allows(allowed, namespace, each)}
        return [each for each in found if each["metadata"]["namespace"] in let_in]

    async def _allows(self, allowed: AllowedNamespaces, own: str, asking: str) -> bool:
        labels: Mapping[str, str] = {}
        if allowed.selector and asking != own:
            namespace = await self._reads.get(NAMESPACE, None, asking) or {}
            labels = namespace.get("metadata", {}).get("labels") or {}
        return allows(allowed, own, asking, labels)
