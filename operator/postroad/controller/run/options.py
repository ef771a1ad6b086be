"""Options of the operator's command, and the intervals of its reconciles."""

from dataclasses import dataclass, field
from datetime import timedelta

from postroad.controller.run.workqueue import TASKS
from postroad.controller.spec.cluster import DEFAULT_CLASS


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of reconciles without events. All have a jitter of a fifth, so that reconciles do
    not come in waves."""

    metrics: timedelta = timedelta(seconds=30)
    """Turns of a MailQueue, longer where a QueueCluster has many: sizes and limits, and what other
    intervals make due."""

    full: timedelta = timedelta(minutes=5)
    """Everything about a queue; repairs changes of which no watch had an event."""

    clusters: timedelta = timedelta(minutes=1)
    """Everything about a QueueCluster: servers, tables, claims, Secrets of other namespaces."""

    servers: timedelta = timedelta(seconds=5)
    """A look whether servers answer, and whether the Secrets of QueueClusters have changed."""

    first_retry: timedelta = timedelta(seconds=5)
    """After a failed reconcile; doubled up to `clusters`."""


LEASE_NAMESPACE = "postroad-system"
"""Namespace in which operators meet, whichever namespace they run in."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the operator's command. No `namespaces`: all. `lease_namespace` has the list of
    orphans too."""

    image: str
    pipeline_image: str = ""
    pull_secrets: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    operator_class: str = DEFAULT_CLASS
    lease_namespace: str = LEASE_NAMESPACE
    tasks: int = TASKS
    intervals: Intervals = field(default_factory=Intervals)
    ambient_credentials: bool = False
