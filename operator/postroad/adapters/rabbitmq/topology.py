"""The exchange, queues and bindings of one mail queue: describes, declares and deletes them.

All queues are quorum queues. Dead-lettered messages, and delayed ones whose time is over, move to
their next queue at least once: RabbitMQ keeps each until that queue has it, which needs
`x-overflow: reject-publish`. Source: 000 Decision; ADR 0011.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from postroad.adapters.rabbitmq.connection import Channel
from postroad.domain.names import QueueName
from postroad.ports.broker import DELAY_SECONDS

WORK, DEAD = "work", "dead"
"""Routing keys of the two queues that have consumers."""

NEVER = 1_000_000_000
"""A delivery limit beyond reach for the dead queue, where the default of RabbitMQ 4 (20) would drop
messages. RabbitMQ 3 and 4 write "no limit" differently."""


def delay_key(step_seconds: int) -> str:
    """Return the routing key of a delay."""
    return f"delay.{step_seconds}"


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """One queue and its routing key."""

    name: str
    routing_key: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Topology:
    """The exchange and the queues of a mail queue."""

    exchange: str
    queues: tuple[DeclaredQueue, ...]


def topology_of(queue: QueueName, delivery_limit: int) -> Topology:
    """Return the topology. The work queue comes first, then the dead queue, then the delay
    queues."""

    def moving_on(routing_key: str) -> dict[str, object]:
        return {
            "x-queue-type": "quorum",
            "x-overflow": "reject-publish",
            "x-dead-letter-strategy": "at-least-once",
            "x-dead-letter-exchange": queue.exchange,
            "x-dead-letter-routing-key": routing_key,
        }

    return Topology(
        queue.exchange,
        (
            DeclaredQueue(
                queue.work_queue, WORK, {**moving_on(DEAD), "x-delivery-limit": delivery_limit}
            ),
            DeclaredQueue(
                queue.dead_queue, DEAD, {"x-queue-type": "quorum", "x-delivery-limit": NEVER}
            ),
            *(
                DeclaredQueue(
                    queue.delay_queue(step),
                    delay_key(step),
                    {**moving_on(WORK), "x-message-ttl": step * 1000},
                )
                for step in DELAY_SECONDS
            ),
        ),
    )


async def declare(channel: Channel, topology: Topology) -> None:
    """Create what is missing. The work queue comes last, because a message that it dead-letters
    before the dead queue exists would be lost. Raises: ServerError."""
    driver = channel.driver
    await channel.call(
        driver.exchange_declare, topology.exchange, exchange_type="direct", durable=True
    )
    work, *others = topology.queues
    for queue in (*others, work):
        await channel.call(
            driver.queue_declare, queue.name, durable=True, arguments=dict(queue.arguments)
        )
        await channel.call(driver.queue_bind, queue.name, topology.exchange, queue.routing_key)


async def delete(channel: Channel, topology: Topology) -> None:
    """Delete exchange and queues with their messages. Idempotent. The exchange goes first, so that
    no process publishes to the other queues meanwhile. Raises: ServerError."""
    driver = channel.driver
    await channel.call(driver.exchange_delete, topology.exchange)
    for queue in topology.queues:
        await channel.call(driver.queue_delete, queue.name)
