"""The messages of one channel that RabbitMQ has not confirmed.

RabbitMQ neither confirms nor refuses messages for a queue without a quorum: it keeps them, and
enqueues them when the quorum is back, though the publisher's timeout is over. So each message stays
here until its confirm or the loss of the channel; a repetition waits for the same confirm instead
of being sent; and beyond a limit, the publisher sends that queue no more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from postroad.errors import (
    BrokerUnavailable,
    ExchangeGone,
    NotPublished,
    ServerError,
    Unroutable,
)

MOST = 4096
"""Unconfirmed messages with one routing key: many times those in flight with a healthy queue, and a
few megabytes of the driver's memory."""

MOST_BYTES = 64 * 2**20
"""The same, by the size of their bodies: as many messages with the largest envelopes."""


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """A published message. Two equal ones are one, published twice."""

    routing_key: str
    message_id: UUID
    body: bytes


class Unconfirmed:
    """Unconfirmed messages, by delivery tag and by message."""

    def __init__(self) -> None:
        self._messages: dict[int, PublishedMessage] = {}
        self._confirms: dict[PublishedMessage, asyncio.Future[None]] = {}
        self._count: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._messages)

    def confirm_of(self, message: PublishedMessage) -> asyncio.Future[None] | None:
        """Return the pending confirm of a message; None: it is not among them."""
        return self._confirms.get(message)

    def check_room(self, routing_key: str) -> None:
        """Raises: NotPublished at the limits of a routing key."""
        count, size = self._count[routing_key], self._bytes[routing_key]
        if count >= MOST or size >= MOST_BYTES:
            raise NotPublished(
                f"RabbitMQ has not confirmed {count} messages ({size} bytes) for {routing_key}",
                hint="see whether a majority of the queue's nodes runs: rabbitmq-queues"
                " quorum_status QUEUE",
            )

    def add(self, tag: int, message: PublishedMessage) -> asyncio.Future[None]:
        """Note a message as sent; return its pending confirm."""
        confirm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        confirm.add_done_callback(_seen)
        self._messages[tag] = message
        self._confirms[message] = confirm
        self._count[message.routing_key] += 1
        self._bytes[message.routing_key] += len(message.body)
        return confirm

    def resolve(self, tag: int, error: ServerError | None, *, multiple: bool) -> None:
        """Resolve the confirm of a message; `multiple`: of all up to this tag."""
        if multiple:
            tags = []
            for each in self._messages:  # in the order of tags
                if each > tag:
                    break
                tags.append(each)
        else:
            tags = [tag]
        for each in tags:
            self._resolve(each, error)

    def lose(self, error: ServerError) -> None:
        """Fail all confirms, because the channel is lost: whether the queues have the messages is
        unknown. Where an exchange is missing, they cannot have the last one: RabbitMQ closes the
        channel at the first message for the exchange."""
        for tag in list(self._messages):
            is_unsent = isinstance(error, Unroutable) and len(self) == 1
            self._resolve(tag, Unroutable(str(error)) if is_unsent else _unknown(error))

    def _resolve(self, tag: int, error: ServerError | None) -> None:
        message = self._messages.pop(tag, None)
        if message is None:
            return
        self._count[message.routing_key] -= 1
        self._bytes[message.routing_key] -= len(message.body)
        confirm = self._confirms.pop(message)
        if error is None:
            confirm.set_result(None)
        else:
            confirm.set_exception(error)


def _seen(confirm: asyncio.Future[None]) -> None:
    confirm.exception()  # read here, because asyncio logs an error that no publish reads


def _unknown(error: ServerError) -> ServerError:
    """Return an error that leaves open whether a queue has the message."""
    if isinstance(error, Unroutable):
        return ExchangeGone(str(error))
    return BrokerUnavailable(f"the channel was lost before the confirm: {error}")
