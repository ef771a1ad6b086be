"""The outside servers of one cluster, from which the ports of any queue are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from postroad.domain.queues.names import QueueName
from postroad.errors import ServerError
from postroad.ports.blobs import Blobs
from postroad.ports.broker import Broker
from postroad.ports.claims import ClaimRecord
from postroad.ports.history import History
from postroad.ports.queue_users import QueueUsers
from postroad.ports.view import ViewStore

Guard = Callable[[], None]
"""Asked just before a request leaves the process, also in other threads than the event loop's: an
exception of it keeps the request in."""

SAFE_COPIES = 3
"""With so many, the loss of one machine loses and stops nothing."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check of one server found: its version, or the error that prevents its use. `limits`
    names what it cannot do, `unknown` what could not be found out, as words for a condition."""

    version: str | None = None
    error: ServerError | None = None
    limits: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class Servers(Protocol):
    """Makes ports; connections are shared and opened on first use."""

    def broker(self, queue: QueueName, *, delivery_limit: int = 20) -> Broker:
        """Return the broker of a queue. No I/O."""
        ...

    def views(self) -> ViewStore:
        """Return the keyspace of the cluster. No I/O."""
        ...

    def history(self, queue: QueueName) -> History:
        """Return the configuration history of a queue. No I/O."""
        ...

    def keyspace_claim(self) -> ClaimRecord:
        """Return the claim on the cluster's keyspace. No I/O."""
        ...

    def queue_claim(self, queue: QueueName) -> ClaimRecord:
        """Return the claim on a queue's objects in the broker. No I/O."""
        ...

    def queue_users(self) -> QueueUsers:
        """Return the users at the broker that are made for queues. No I/O."""
        ...

    def blobs(self, bucket: str) -> Blobs:
        """Return the objects of a bucket. No I/O."""
        ...

    async def check(self, *, brief: bool = False) -> dict[str, Checked]:
        """Ask each of `rabbitmq`, `cassandra`, `s3` for its version, at the same time, each within
        a few seconds. A server that is away is a result, and raises nothing. `brief`: only whether
        they answer, at a cost that does not grow with their queues; `limits` and `unknown` stay
        empty."""
        ...

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        ...
