"""The exchanges, queues and bindings of one mail queue, and the delay queues that all mail queues
of a vhost share: describes, declares, counts and deletes them.

All queues are quorum queues. Dead-lettered messages, and delayed ones whose time is over, move to
their next queue at least once: RabbitMQ keeps each until that queue has it, which needs
`x-overflow: reject-publish`. Source: 000 Decision; ADR 0011; ADR 0031."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from postroad.adapters.rabbitmq.connection import Channel
from postroad.domain.queues.names import QueueName
from postroad.ports.broker import DELAY_SECONDS

WORK, DEAD = "work", "dead"
"""Routing keys of the two queues that have consumers."""

DELAYS = "postroad.delays"
"""The topic exchange that takes delayed messages of all mail queues; the first word of the routing
key is the step, the others are the mail queue's name."""

DUE = "postroad.due"
"""The topic exchange to which delay queues dead-letter, by the same routing key."""

UNROUTED = "postroad.unrouted"
"""The fanout exchange, and its queue, for due messages of mail queues that were deleted. Without
them RabbitMQ would try such messages for ever, and those behind them in their delay queue would
wait."""

UNROUTED_LIFETIME = timedelta(days=1)
UNROUTED_MESSAGES = 100_000
"""Headers that the queue of unrouted messages keeps for an administrator to look at."""

NEVER = 1_000_000_000
"""A delivery limit beyond reach for the dead queue, where the default of RabbitMQ 4 (20) would drop
messages. RabbitMQ 3 and 4 write "no limit" differently."""


def delay_key(step_seconds: int, queue: QueueName) -> str:
    """Return the routing key of a delayed message.

    >>> delay_key(8, QueueName("mail", "outgoing"))
    '8.mail.outgoing'
    """
    return f"{step_seconds}.{queue}"


@dataclass(frozen=True, slots=True)
class Binding:
    """Rule that routes messages of an exchange to a queue."""

    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """One queue and its bindings, of which it has one at least."""

    name: str
    bindings: tuple[Binding, ...]
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeclaredExchange:
    name: str
    kind: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Topology:
    """Exchanges and queues, in the order in which they are declared: a message that a queue
    dead-letters before the next queue exists would be lost."""

    exchanges: tuple[DeclaredExchange, ...]
    queues: tuple[DeclaredQueue, ...]


NOTHING = Topology((), ())


@dataclass(frozen=True, slots=True)
class Count:
    """The ready messages and the consumers of a queue."""

    ready: int
    consumers: int


def _moving_on(exchange: str) -> dict[str, object]:
    return {
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-exchange": exchange,
    }


def topology_of(queue: QueueName, delivery_limit: int) -> Topology:
    """Return the topology of one mail queue: its dead queue, then its work queue."""
    return Topology(
        (DeclaredExchange(queue.exchange, "direct", {}),),
        (
            DeclaredQueue(
                queue.dead_queue,
                (Binding(queue.exchange, DEAD),),
                {"x-queue-type": "quorum", "x-delivery-limit": NEVER},
            ),
            DeclaredQueue(
                queue.work_queue,
                (Binding(queue.exchange, WORK), Binding(DUE, f"*.{queue}")),
                {
                    **_moving_on(queue.exchange),
                    "x-dead-letter-routing-key": DEAD,
                    "x-delivery-limit": delivery_limit,
                },
            ),
        ),
    )


def delay_queue(step_seconds: int) -> str:
    return f"postroad.delay.{step_seconds}"


SHARED = Topology(
    (
        DeclaredExchange(UNROUTED, "fanout", {}),
        DeclaredExchange(DUE, "topic", {"alternate-exchange": UNROUTED}),
        DeclaredExchange(DELAYS, "topic", {}),
    ),
    (
        DeclaredQueue(
            UNROUTED,
            (Binding(UNROUTED, ""),),
            {
                "x-queue-type": "quorum",
                "x-message-ttl": round(UNROUTED_LIFETIME.total_seconds() * 1000),
                "x-max-length": UNROUTED_MESSAGES,
            },
        ),
        *(
            DeclaredQueue(
                delay_queue(step),
                (Binding(DELAYS, f"{step}.#"),),
                {**_moving_on(DUE), "x-message-ttl": step * 1000},
            )
            for step in DELAY_SECONDS
        ),
    ),
)
"""The queue of unrouted messages, then the delay queues. They keep the routing key, so that the
exchange of due messages finds the mail queue that each belongs to."""


async def declare(channel: Channel, topology: Topology) -> None:
    """Create what is missing. One answer is awaited for each queue, to its last binding: it has an
    error of the requests before, too. Raises: ServerError."""
    driver = channel.driver
    ask = channel.send if topology.queues else channel.call
    for exchange in topology.exchanges:
        await ask(
            driver.exchange_declare,
            exchange.name,
            exchange_type=exchange.kind,
            durable=True,
            arguments=dict(exchange.arguments),
        )
    for queue in topology.queues:
        await channel.send(
            driver.queue_declare, queue.name, durable=True, arguments=dict(queue.arguments)
        )
        *others, last = queue.bindings
        for each in others:
            await channel.send(driver.queue_bind, queue.name, each.exchange, each.routing_key)
        await channel.call(driver.queue_bind, queue.name, last.exchange, last.routing_key)


async def bind(channel: Channel, topology: Topology) -> None:
    """Bind queues that exist. Raises: ServerError, Unroutable where one does not."""
    for queue in topology.queues:
        for each in queue.bindings:
            await channel.call(
                channel.driver.queue_bind, queue.name, each.exchange, each.routing_key
            )


async def count(channel: Channel, topology: Topology) -> list[Count]:
    """Count each queue. Raises: ServerError, Unroutable where one does not exist."""
    declare = channel.driver.queue_declare
    found = [
        await channel.call(declare, each.name, passive=True, durable=True)
        for each in topology.queues
    ]
    return [Count(each.message_count, each.consumer_count) for each in found]


async def delete(channel: Channel, topology: Topology) -> None:
    """Delete exchanges and queues with their messages. Idempotent. The exchanges go first, so that
    no process publishes to the other queues meanwhile. Raises: ServerError."""
    driver = channel.driver
    for exchange in topology.exchanges:
        await channel.call(driver.exchange_delete, exchange.name)
    for queue in topology.queues:
        await channel.call(driver.queue_delete, queue.name)
