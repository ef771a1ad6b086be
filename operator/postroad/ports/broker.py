"""The broker carries references to entries; it never carries mail.

One `Broker` serves one queue. Everything published is durable, confirmed and mandatory."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from postroad.domain.queues.names import DELAY_SECONDS as DELAY_SECONDS


@dataclass(frozen=True, slots=True)
class Depths:
    """Messages in the broker. `leased` are the unacknowledged ones among `work` and `dead`; None
    where the broker does not report them, and `work` and `dead` lack them then. `delayed` are those
    of all queues that share the delay queues: no broker tells whose they are."""

    work: int
    delayed: int
    dead: int
    consumers: int
    leased: int | None


class Delivery(Protocol):
    """One message leased to this consumer. Exactly one of the three endings, once. An ending on a
    delivery whose channel is gone raises BrokerUnavailable; the broker has given the message to
    another consumer (or will), which the marks make harmless."""

    @property
    def body(self) -> bytes: ...

    @property
    def redelivered(self) -> bool:
        """True if the broker may have handed it out before."""

    @property
    def failed_deliveries(self) -> int:
        """Number of times that it was handed out and neither acked nor given back, as far as the
        broker knows; past the delivery limit it is dead-lettered by the broker."""

    @property
    def waited(self) -> timedelta:
        """For how long it has been leased, also before it was handed out: the broker counts from
        when it sent the message."""

    @property
    def is_leased(self) -> bool:
        """True if it is still leased, as far as this process knows: it has not ended, and its
        channel is not known to be gone. Cheap."""

    async def ack(self) -> None:
        """Finish the message. Cheap: not a round trip."""

    async def give_back(self) -> None:
        """Put it back without counting a failure, where the broker can."""

    async def dead_letter(self) -> None:
        """Send it to the dead queue."""


class Broker(Protocol):
    """The messages of one queue. Safe to use concurrently from one event loop."""

    async def publish(self, message_id: UUID, body: bytes, delay_seconds: int = 0) -> None:
        """Publish to the work queue, or to the delay of exactly `delay_seconds` (one of
        `DELAY_SECONDS`), from where it comes to the work queue by itself. The delay queues are
        shared: they take a message of a queue that does not exist (and drop it when it is due), and
        keep those of a deleted one, which come to a queue that is declared under its name.

        Returns when a quorum has it on disk. Many publishes may be in flight; they share confirms.
        Not idempotent: an error leaves open whether the message exists. But one that is published
        again as it was, to the same step, while the broker may still confirm the first, is not
        sent: it waits for that confirm. What waits is bounded, beyond it nothing more is sent.
        Raises: NotPublished when it was certainly not sent (no connection, or too many confirms
        have not come), BrokerUnavailable (also when the confirm does not come in time), and
        ExchangeGone, which leave that open; Unroutable, BrokerRefused and CredentialsRefused, by
        which this call left no message either."""

    def consume(self, prefetch: int) -> AsyncIterator[Delivery]:
        """Yield messages of the work queue, oldest first, at most `prefetch` not ended. Reconnects
        for ever with backoff and jitter. Deliveries handed out before a lost connection raise at
        their ending. `aclose()` cancels the consumer; what it had not handed out goes back, what it
        handed out stays leased until it ends or the broker is closed."""

    def consume_dead(self, prefetch: int) -> AsyncIterator[Delivery]:
        """Yield messages of the dead queue until none has been there for a second, then end."""

    async def depths(self) -> Depths:
        """Return how many messages there are. Raises: BrokerUnavailable."""

    async def ready(self) -> int:
        """Return how many messages of the work queue no consumer has: one small request. Raises:
        BrokerUnavailable."""

    async def exists(self) -> bool:
        """Return whether the queues for references and for dead letters are there. Raises:
        BrokerUnavailable."""

    async def declare(self, *, first: bool = False) -> None:
        """Create the exchanges, the queues and the bindings that are missing, the shared delay
        queues among them, and copies of queues on nodes that joined later, where the broker allows
        it. `first`: the queues are new, so that no copies are looked for. Idempotent. Raises:
        BrokerRefused when one exists with other arguments (the message names them)."""

    async def delete(self) -> None:
        """Delete the queue's own exchange and queues with what is in them. Idempotent."""

    async def close(self) -> None:
        """Close connections; unended deliveries go back. Idempotent."""
