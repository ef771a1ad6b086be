"""Places of MailQueues, and of their workers, under the quota of their QueueCluster.

A quota takes nothing away: MailQueues that have a configuration keep their places, and Deployments
their replicas, also when the quota is made smaller. What comes last is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from postroad.controller.reads import PATIENCE, Absences
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.domain.values.instants import format_duration
from postroad.errors import QuotaExceeded
from postroad.ports.kubernetes import Object


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
