"""The publishes of one channel that RabbitMQ has not confirmed.

A queue without a quorum neither takes nor refuses: RabbitMQ keeps what is published to it, and the
publisher hears nothing. Who published gives up after a while, but what was sent stays sent, and is
carried out when the quorum is back. So it is kept here until its confirm or until the channel is
lost; a repetition waits for it instead of being sent as well; and beyond a bound, nothing more is
sent to that queue.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from postroad.errors import BrokerUnavailable, ServerError, Unroutable

MOST = 4096
"""Unconfirmed publishes with one routing key: many times those that are under way at once where
all is well, and a few megabytes of the driver's memory."""

MOST_BYTES = 64 * 2**20
"""The same, counted by their bodies: as much as so many messages with the largest envelopes."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is published. Two that are equal are one, published twice."""

    routing_key: str
    message_id: UUID
    body: bytes


class Unconfirmed:
    """By delivery tag, and by message."""

    def __init__(self) -> None:
        self._messages: dict[int, Message] = {}
        self._confirms: dict[Message, asyncio.Future[None]] = {}
        self._count: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def confirm_of(self, message: Message) -> asyncio.Future[None] | None:
        """Return the confirm to come of a message that was sent already."""
        return self._confirms.get(message)

    def check_room(self, routing_key: str) -> None:
        """Raises: BrokerUnavailable."""
        count, size = self._count[routing_key], self._bytes[routing_key]
        if count >= MOST or size >= MOST_BYTES:
            raise BrokerUnavailable(
                f"RabbitMQ has not confirmed {count} messages ({size} bytes) for {routing_key}",
                hint="see whether a majority of the queue's nodes runs: rabbitmq-queues"
                " quorum_status QUEUE",
            )

    def add(self, tag: int, message: Message) -> asyncio.Future[None]:
        """Note a message as sent; return the confirm to come."""
        confirm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        confirm.add_done_callback(_seen)
        self._messages[tag] = message
        self._confirms[message] = confirm
        self._count[message.routing_key] += 1
        self._bytes[message.routing_key] += len(message.body)
        return confirm

    def settle(self, tag: int, error: ServerError | None, *, multiple: bool) -> None:
        """Note what became of a message, or of all up to this tag."""
        if multiple:
            tags = []
            for each in self._messages:  # in the order of tags
                if each > tag:
                    break
                tags.append(each)
        else:
            tags = [tag]
        for each in tags:
            self._settle(each, error)

    def lose(self, error: ServerError) -> None:
        """Note that the channel is gone: whether these messages exist is unknown."""
        unknown = _unknown(error)
        for tag in list(self._messages):
            self._settle(tag, unknown)

    def _settle(self, tag: int, error: ServerError | None) -> None:
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
    confirm.exception()  # read here, also when no publish waits for it any more


def _unknown(error: ServerError) -> ServerError:
    """A missing exchange is as good as unroutable; a channel that was closed for
    another publisher's message leaves open what became of this one."""
    if isinstance(error, Unroutable):
        return Unroutable(str(error))
    return BrokerUnavailable(f"the channel was lost before the confirm: {error}")
