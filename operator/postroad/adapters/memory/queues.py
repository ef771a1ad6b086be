"""The queues of a broker in memory, shared by all processes: ready, delayed, dead and unconfirmed
messages, with RabbitMQ's order.

A message that was delivered too often is dead-lettered, and one in a delay queue moves to the work
queue when its time is over. Consumers with room get one message each, one after the other.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from postroad.adapters.memory.claims import ClaimedObject
from postroad.ports.clock import Clock


@dataclass(slots=True)
class Message:
    """A message in any queue."""

    message_id: UUID
    body: bytes
    failed_deliveries: int = 0
    redelivered: bool = False


@dataclass(slots=True)
class BrokerQueues:
    """The queues of one mail queue, shared by all processes. `clock` is the broker's own."""

    clock: Clock
    declared: bool = False
    delivery_limit: int = 0
    claimed: ClaimedObject = field(default_factory=lambda: ClaimedObject(is_counted=False))
    ready: deque[Message] = field(default_factory=deque)
    dead: deque[Message] = field(default_factory=deque)
    unacked: int = 0
    unacked_dead: int = 0
    consumers: int = 0
    missing: set[int] = field(default_factory=set)
    """Steps of the delay queues whose queue does not exist; 0 is the work queue."""
    without_quorum: set[int] = field(default_factory=set)
    """The same, of queues that neither confirm nor refuse until `regain_quorum`."""
    unconfirmed: list[tuple[int, Message]] = field(default_factory=list)
    """The messages that those queues get with `regain_quorum`."""
    _delayed: list[tuple[timedelta, int, Message]] = field(default_factory=list)
    _count: int = 0
    _waiting: set[asyncio.Future[None]] = field(default_factory=set)
    _consumers_made: int = 0
    _with_room: set[ConsumerPlaces] = field(default_factory=set)
    _served: int = 0

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    @property
    def delayed_messages(self) -> list[Message]:
        return [message for _, _, message in self._delayed]

    def put(self, message: Message, delay_seconds: int) -> None:
        if delay_seconds:
            self._count += 1
            due = self.clock.elapsed() + timedelta(seconds=delay_seconds)
            heapq.heappush(self._delayed, (due, self._count, message))
        else:
            self.ready.append(message)
        self.wake()

    def regain_quorum(self) -> None:
        """Give all queues a quorum, and enqueue what was published meanwhile."""
        self.without_quorum.clear()
        unconfirmed, self.unconfirmed = self.unconfirmed, []
        for step, message in unconfirmed:
            self.put(message, step)

    def put_back(self, message: Message, *, failed: bool, limit: int) -> None:
        message.redelivered = True
        message.failed_deliveries += failed
        if message.failed_deliveries > limit:
            self.dead_letter_message(message)
        else:
            self.ready.appendleft(message)
            self.wake()

    def dead_letter_message(self, message: Message) -> None:
        """Dead-letter a message, whose deliveries the dead queue counts anew."""
        message.redelivered = False
        self.dead.append(message)
        self.wake()

    def lose_everything(self) -> None:
        """Forget all messages that are not handed out, as a broker whose volume was lost."""
        self._delayed.clear()
        self.delete()

    def delete(self) -> None:
        """Forget the messages of the queue's own queues: the delay queues are shared, and stay."""
        self.ready.clear()
        self.dead.clear()

    def ripen(self) -> None:
        while self._delayed and self._delayed[0][0] <= self.clock.elapsed():
            due = heapq.heappop(self._delayed)[2]
            if self.declared:
                self.ready.append(due)

    def wake(self) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_result(None)

    def lease(self, prefetch: int) -> ConsumerPlaces:
        """Return the empty lease of a new consumer."""
        self._consumers_made += 1
        return ConsumerPlaces(prefetch, self._consumers_made)

    async def next_for(self, lease: ConsumerPlaces) -> Message | None:
        """Return a message for a consumer with room, or None after a change. Of the consumers that
        wait here, the one served longest ago is served first."""
        self._with_room.add(lease)
        try:
            self.ripen()
            if not self.ready:
                await self.change()
                return None
            if lease is not min(self._with_room, key=lambda each: (each.served, each.number)):
                self.wake()
                await asyncio.sleep(0)
                return None
            self._served += 1
            lease.served = self._served
            return self.ready.popleft()
        finally:
            self._with_room.discard(lease)

    async def change(self) -> None:
        """Wait until a message was put or a delay is over."""
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(change)
        sleeping = asyncio.ensure_future(self._ripening())
        try:
            await asyncio.wait([change, sleeping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(change)
            sleeping.cancel()

    async def _ripening(self) -> None:
        if self._delayed:
            await self.clock.sleep(self._delayed[0][0] - self.clock.elapsed())
        else:
            await asyncio.Event().wait()


class ConsumerPlaces:
    """How many deliveries one consumer holds. `served` is the number of the last message it got,
    among all that the queue handed out."""

    def __init__(self, prefetch: int, number: int) -> None:
        self.prefetch = prefetch
        self.number = number
        self.count = 0
        self.handed_out = 0
        self.served = 0
        self.freed = asyncio.Event()
