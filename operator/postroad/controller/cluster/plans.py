"""Values that tell what a QueueCluster and its MailQueues have at the servers: frozen, made without
a request: its place, its tables, and which queues fit their row lifetime.

The windows that a queue's history accepted bind the tables, because its rows lie in them. What a
queue merely wants binds no table: where it does not fit, that queue alone is refused."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from postroad.controller.spec.cluster import Cassandra
from postroad.controller.spec.parts import AllowedNamespaces
from postroad.controller.spec.queue_resource import Queue
from postroad.controller.status.conditions import Finding
from postroad.domain.configuration.rules import Refusal
from postroad.domain.queues.broker_users import RotationPace
from postroad.domain.queues.lifetimes import lifetimes_of, longest_slice, longest_step
from postroad.domain.queues.names import QueueName
from postroad.domain.values.instants import format_duration, parse_duration
from postroad.errors import ConfigurationRefused, InvalidInput
from postroad.ports.blobs import Blobs
from postroad.ports.broker import Broker
from postroad.ports.servers import Servers
from postroad.ports.view import History, TableOptions, View


@dataclass(frozen=True, slots=True)
class Holder:
    """A QueueCluster, with its uid, or a MailQueue of it, as what claims objects at servers.
    `adopted`: the id of the claim that it may take over."""

    uid: str
    namespace: str
    name: str
    queue: str = ""
    adopted: str = ""


@dataclass(frozen=True, slots=True)
class KeyspacePlan:
    """The keyspace of a QueueCluster. `allowed`: of the MailQueues that its tables serve;
    `has_tables`: a reconcile of the QueueCluster has made them, and keeps them as declared; `away`:
    Cassandra did not answer when it was last checked."""

    holder: Holder
    servers: Servers
    cassandra: Cassandra
    allowed: AllowedNamespaces
    has_tables: bool
    away: Finding | None = None


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Place of a MailQueue at the servers of its QueueCluster. `bucket_prefix`: of the buckets that
    belong to one MailQueue each; `owns_bucket`: this one is such a bucket."""

    holder: Holder
    servers: Servers
    name: QueueName
    uid: str
    delivery_limit: int
    bucket: str
    bucket_prefix: str
    owns_bucket: bool

    def broker(self) -> Broker:
        """Return its queues in RabbitMQ. No I/O."""
        return self.servers.broker(self.name, delivery_limit=self.delivery_limit)

    def view(self) -> View:
        """Return its rows in Cassandra. No I/O."""
        return self.servers.views().view(str(self.name))

    def history(self) -> History:
        """Return its configuration history. No I/O."""
        return self.servers.history(self.name)

    def blobs(self) -> Blobs:
        """Return its bucket. No I/O."""
        return self.servers.blobs(self.bucket)


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """The queues of a MailQueue in RabbitMQ, and its users there: `pace` None where the
    QueueCluster asks for none. `begun`: it has a configuration, so that they were made before."""

    place: QueuePlace
    queue: Queue
    pace: RotationPace | None
    begun: bool
    away: Finding | None

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of its streams of events, which wait in RabbitMQ."""
        delivery = self.queue.spec.delivery
        return () if delivery is None else tuple(each.name for each in delivery.events)


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The bucket of a MailQueue. `begun`: it has a configuration, so that it was made before."""

    place: QueuePlace
    begun: bool
    away: Finding | None


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """The rows of a MailQueue, and how they are cut: `status` has the configuration and the history
    as they were last reported."""

    place: QueuePlace
    queue: Queue
    keyspace: KeyspacePlan
    status: Mapping[str, Any]

    @property
    def reported_history(self) -> Sequence[Mapping[str, Any]]:
        return self.status.get("history") or ()


SLICE_WINDOW_TOO_LONG = "SliceWindowTooLong"
RETRY_STEP_TOO_LONG = "RetryStepTooLong"


@dataclass(frozen=True, slots=True)
class Need:
    """Requirements of one queue, `NAMESPACE/NAME`, on the tables: room for its longest slice."""

    queue: str
    longest_window: timedelta


def need_of(found: Mapping[str, Any]) -> Need | None:
    """Return the need of a MailQueue: for every window that its status has as accepted, because
    rows of older windows still live. None before the first one."""
    metadata, status = found["metadata"], found.get("status") or {}
    accepted = [
        each for each in status.get("history") or () if each.get("type") != "ConfigurationRefused"
    ]
    windows = []
    for each in (status.get("configuration") or {}, *accepted):
        try:
            windows.append(parse_duration(each["sliceWindow"]))
        except (KeyError, InvalidInput):
            continue
    return Need(f"{metadata['namespace']}/{metadata['name']}", max(windows)) if windows else None


def table_options(cassandra: Cassandra, needs: Iterable[Need]) -> TableOptions:
    """Return the options. Raises: ConfigurationRefused for a row lifetime that is too short for
    slices which have rows."""
    every = list(needs)
    for each in every:
        if each.longest_window > longest_slice(cassandra.row_lifetime):
            raise ConfigurationRefused(
                f"rowLifetime {format_duration(cassandra.row_lifetime)} is too short for MailQueue "
                f"{each.queue}, which has slices of {format_duration(each.longest_window)}: the "
                "tables stay as they are",
                hint=f"at least {format_duration(4 * each.longest_window)}, four of its slices",
            )
    lifetimes = lifetimes_of(
        cassandra.row_lifetime, [each.longest_window for each in every], timedelta(0)
    )
    return TableOptions(
        replication=replication(cassandra),
        row_lifetime=lifetimes.row_lifetime,
        compaction_window=lifetimes.compaction_window,
        gc_grace=lifetimes.gc_grace,
    )


def refused_by_lifetime(
    queue: Queue, row_lifetime: timedelta
) -> tuple[Refusal | None, Refusal | None]:
    """Return why a queue must not begin with its window, as rows of one slice would expire before
    it is cleaned; and why its longest retry step does not fit, as maintenance would roll each mail
    forward that waits for it. None for what fits."""
    window, step = queue.spec.view.slice_window, max(queue.spec.retry.lanes)
    refused_window = refused_step = None
    if window > (limit := longest_slice(row_lifetime)):
        what = f"sliceWindow {format_duration(window)}"
        enough = f"at least {format_duration(4 * window)}"
        refused_window = _unfit(
            SLICE_WINDOW_TOO_LONG, "sliceWindow", what, limit, row_lifetime, enough
        )
    if step > (limit := longest_step(row_lifetime)):
        what = f"the retry step {format_duration(step)}"
        enough = f"longer than {format_duration(2 * step)}"
        refused_step = _unfit(RETRY_STEP_TOO_LONG, "lanes", what, limit, row_lifetime, enough)
    return refused_window, refused_step


def _unfit(
    reason: str, field: str, what: str, limit: timedelta, row_lifetime: timedelta, enough: str
) -> Refusal:
    most = format_duration(limit)
    message = (
        f"{what} does not fit the rowLifetime of the QueueCluster, {format_duration(row_lifetime)}:"
        f" choose at most {most}, or let rowLifetime be {enough}"
    )
    return Refusal(reason, message, {field: (most,)})


def replication(cassandra: Cassandra) -> dict[str, str]:
    wanted = cassandra.replication
    if wanted.class_ == "SimpleStrategy":
        return {"class": wanted.class_, "replication_factor": str(wanted.factor)}
    return {"class": wanted.class_, cassandra.local_datacenter: str(wanted.factor)}
