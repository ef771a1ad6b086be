"""The outside servers of one cluster, from which the ports of any queue are made.

The record, at a server, of which QueueCluster uses one of its objects.

The users at the broker that are made for the programs of one mail queue each.

Their rights are those that these programs need, and no others. Source: ADR 0042."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from postroad.domain.queues.broker_users import QueueUser
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.ownership import Claim, Claimant
from postroad.errors import ServerError
from postroad.ports.blobs import Blobs
from postroad.ports.broker import Broker
from postroad.ports.events import EventSpool
from postroad.ports.view import History, ViewStore


class ClaimRecord(Protocol):
    """The claim on a keyspace, a queue of RabbitMQ, or a bucket. Raises: its server's error."""

    async def claim(self, claimant: Claimant) -> Claim | None:
        """Claim the object unless it is claimed; return the claim that holds. Of several claimants
        at once the same one wins for all. None: the object does not exist yet, and holds none.
        Idempotent, durable."""

    async def transfer(self, found: Claim, claimant: Claimant) -> Claim:
        """Replace a claim, if it is the one found; return the claim that holds then."""

    async def release(self, claimant: Claimant) -> None:
        """Remove a claim, if it is this claimant's. Idempotent."""


class QueueUsers(Protocol):
    """Queue users in one vhost of a broker. All other users stay as they are. Every method raises:
    BrokerUnavailable, BrokerRefused, TlsRefused, CredentialsRefused where the login of this process
    may not make users."""

    async def made_for(self, token: str) -> Collection[QueueUser]:
        """Return the queue users of one QueueCluster, whatever their rights are."""

    async def has_rights(self, user: QueueUser) -> bool | None:
        """Return whether a user has exactly the rights that its queue's programs need; None where
        there is no such user."""

    async def give(self, user: QueueUser, password: str) -> None:
        """Make a user, or replace its password and its rights. Connections that are open go on.
        Idempotent, durable."""

    async def delete(self, user: QueueUser) -> None:
        """Delete a user; the broker closes its connections. Idempotent, durable."""


Guard = Callable[[], None]
"""Asked just before a request leaves the process, also in other threads than the event loop's: an
exception of it keeps the request in."""

SAFE_COPIES = 3
"""With so many, the loss of one machine loses and stops nothing."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of a check of one server: its version, or the error that prevents its use. `limits`
    names what it cannot do, `unknown` what could not be found out, as words for a condition."""

    version: str | None = None
    error: ServerError | None = None
    limits: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class Servers(Protocol):
    """Makes ports; connections are shared and opened on first use."""

    def broker(self, queue: QueueName, *, delivery_limit: int = 20) -> Broker:
        """Return the broker of a queue. No I/O."""

    def views(self) -> ViewStore:
        """Return the keyspace of the cluster. No I/O."""

    def history(self, queue: QueueName) -> History:
        """Return the configuration history of a queue. No I/O."""

    def keyspace_claim(self) -> ClaimRecord:
        """Return the claim on the cluster's keyspace. No I/O."""

    def queue_claim(self, queue: QueueName) -> ClaimRecord:
        """Return the claim on a queue's objects in the broker. No I/O."""

    def queue_users(self) -> QueueUsers:
        """Return the users at the broker that are made for queues. No I/O."""

    def blobs(self, bucket: str) -> Blobs:
        """Return the objects of a bucket. No I/O."""

    def event_spool(self, queue: QueueName) -> EventSpool:
        """Return where events of a queue wait to be sent. No I/O."""

    async def declare_streams(self, queue: QueueName, streams: Collection[str]) -> None:
        """Make where events of these streams wait. Raises: ServerError."""

    async def check(self, *, brief: bool = False) -> dict[str, Checked]:
        """Ask each of `rabbitmq`, `cassandra`, `s3` for its version, at the same time, each within
        a few seconds. A server that is away is a result, and raises nothing. `brief`: only whether
        they answer, at a cost that does not grow with their queues; `limits` and `unknown` stay
        empty."""

    async def close(self) -> None:
        """Close all connections. Idempotent."""
