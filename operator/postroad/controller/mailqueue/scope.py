"""Decides how much of a resource a reconcile carries out: pure.

The decision compares facts: what the resource depends on now, with what the last reconcile that
succeeded saw of it. So a failed reconcile loses nothing, and an event only chooses the moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, auto
from typing import Any

from postroad.controller.kubernetes.api import has_finalizer
from postroad.controller.mailqueue.autoscaling import Decided
from postroad.controller.reads import ChildVersion, User
from postroad.controller.spec.queue_resource import is_erased_with_its_resource
from postroad.controller.status.status import Status, wants_retry


class Scope(Enum):
    """Parts of a MailQueue that are carried out."""

    FULL = auto()
    """Servers, configuration, children, metrics."""

    CHILDREN = auto()
    """The children; findings about servers and configuration stay."""

    METRICS = auto()
    """Sizes and limits in the status."""

    PAUSED = auto()
    """The metrics, and the condition Paused."""


@dataclass(frozen=True, slots=True)
class SeenFacts:
    """Facts that a MailQueue depends on. `cluster`: a version that changes with its QueueCluster,
    the Secrets and whether the servers answer; None while the MailQueue cannot use it. `may_roll`:
    its pods may be replaced because of a newer operator. `rotate`: the annotation that asks for
    another user at RabbitMQ. `workers`: what autoscaling decided; `looked`: when another autoscaler
    was found to decide."""

    generation: int
    cluster: tuple[object, ...] | None
    children: frozenset[ChildVersion]
    may_roll: bool = False
    rotate: str = ""
    workers: Decided | None = None
    looked: timedelta | None = None


def with_applied(seen: SeenFacts, applied: Sequence[ChildVersion]) -> SeenFacts:
    """Return the facts with the children that a reconcile applied, whose events are no news."""
    known = {(each.kind, each.name): each for each in (*seen.children, *applied)}
    return replace(seen, children=frozenset(known.values()))


@dataclass(frozen=True, slots=True)
class LastReconcile:
    """The last reconcile of a MailQueue: what it saw, the status it wrote, when the last full one
    was, and how many in a row left something to repeat."""

    seen: SeenFacts
    status: Status
    full_at: timedelta
    failures: int = 0

    def saw_resource_of(self, seen: SeenFacts) -> bool:
        """True if neither the MailQueue nor its QueueCluster has changed since."""
        return (seen.generation, seen.cluster) == (self.seen.generation, self.seen.cluster)


@dataclass(frozen=True, slots=True)
class NextReconcile:
    """Plan of the next reconcile. `expected`: kinds and names of the children that are there unless
    another process deleted them."""

    scope: Scope
    expected: frozenset[tuple[str, str]]


def decide(
    found: Mapping[str, Any],
    seen: SeenFacts,
    last: LastReconcile | None,
    now: timedelta,
    interval: timedelta,
) -> NextReconcile:
    """Return what to do for a MailQueue. `interval`: between full reconciles, whatever is seen."""
    expected: frozenset[tuple[str, str]] = frozenset()
    if last is not None and last.saw_resource_of(seen):  # the operator itself deletes none of them
        expected = frozenset((each.kind, each.name) for each in last.seen.children)
    return NextReconcile(_scope(found, seen, last, now, interval), expected)


def _scope(
    found: Mapping[str, Any],
    seen: SeenFacts,
    last: LastReconcile | None,
    now: timedelta,
    interval: timedelta,
) -> Scope:
    if found["spec"].get("paused"):
        return Scope.PAUSED
    if (
        last is None
        or last.failures > 0
        or seen.cluster is None
        or not last.saw_resource_of(seen)
        or seen.rotate != last.seen.rotate
        or last.status != found.get("status")
        or has_finalizer(found) != is_erased_with_its_resource(found)
        or now - last.full_at >= interval
    ):
        return Scope.FULL
    return Scope.METRICS if seen == last.seen else Scope.CHILDREN


def after_reconcile(
    scope: Scope, seen: SeenFacts, status: Status, last: LastReconcile | None, now: timedelta
) -> LastReconcile | None:
    """Return what to compare the next reconcile with; None: the next one is full."""
    if scope is Scope.PAUSED:
        return None
    full_at = now if scope is Scope.FULL or last is None else last.full_at
    same = last is not None and last.seen.cluster == seen.cluster
    before = last.failures if last is not None and same else 0
    return LastReconcile(seen, status, full_at, before + 1 if wants_retry(status) else 0)


@dataclass(frozen=True, slots=True)
class LastCheck:
    """The last check of all about a QueueCluster: when it was, and what it saw. `waits`: whether
    MailQueues wait for the replacement of their pods. `adopted`: the claim that it may take over.
    `children`: its console."""

    at: timedelta
    generation: int
    users: frozenset[User]
    waits: bool
    adopted: str = ""
    children: frozenset[ChildVersion] = frozenset()

    def is_current(self, now: LastCheck, interval: timedelta) -> bool:
        """True if it is enough to ask the servers whether they answer: a check of all would see the
        same. `now`: with what is known at this moment."""
        return replace(now, at=self.at) == self and now.at - self.at < interval
