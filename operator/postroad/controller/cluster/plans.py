"""Values that tell what a QueueCluster and its MailQueues have at the servers: frozen, made without
a request. Each step of a reconcile takes its own, and returns findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from postroad.controller.spec.cluster import Cassandra
from postroad.controller.spec.parts import AllowedNamespaces
from postroad.controller.spec.queue_resource import Queue
from postroad.controller.status.conditions import Finding
from postroad.domain.queues.broker_users import RotationPace
from postroad.domain.queues.names import QueueName
from postroad.ports.blobs import Blobs
from postroad.ports.broker import Broker
from postroad.ports.history import History
from postroad.ports.servers import Servers
from postroad.ports.view import View


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
