"""A broker in memory with RabbitMQ's failures: one process's connection to the queues.

A connection that breaks requeues its unacknowledged messages. A queue without a quorum neither
confirms nor refuses.

The queues of a broker in memory, shared by all processes: ready, delayed, dead and unconfirmed
messages, with RabbitMQ's order.

A message that was delivered too often is dead-lettered, and one in a delay queue moves to the work
queue when its time is over. Consumers with room get one message each, one after the other.

Claims on objects in memory."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from postroad.adapters.memory.steps import ProcessSteps, step
from postroad.domain.queues.ownership import Claim, Claimant
from postroad.errors import BrokerRefused, BrokerUnavailable, NotPublished, Unroutable
from postroad.ports.broker import DELAY_SECONDS, Depths
from postroad.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class ClaimedObject:
    """The claims that an object has had, of which the last one holds; None: a release.
    `is_counted`: whether the server keeps the others, as Cassandra does."""

    is_counted: bool = True
    claims: list[Claimant | None] = field(default_factory=list)

    @property
    def claim(self) -> Claim | None:
        *former, claimant = self.claims or [None]
        if claimant is None:
            return None
        if not self.is_counted:
            return Claim.of(claimant)
        tokens = frozenset(each.token for each in former if each is not None)
        return Claim.of(claimant, len(self.claims), tokens)


class MemoryClaimRecord:
    """`ClaimRecord` of one object on a server. `exists`: whether there is such an object."""

    def __init__(
        self,
        claimed: ClaimedObject,
        steps: ProcessSteps,
        server: str,
        exists: Callable[[], bool] = lambda: True,
    ) -> None:
        self._claimed = claimed
        self.steps = steps
        self._server = server
        self._exists = exists

    async def claim(self, claimant: Claimant) -> Claim | None:
        def effect() -> Claim | None:
            if not self._exists():
                return None
            if self._claimed.claim is None:
                self._claimed.claims.append(claimant)
            return self._claimed.claim

        return await self.steps(self._server, "claim", effect)

    async def transfer(self, found: Claim, claimant: Claimant) -> Claim:
        def effect() -> Claim:
            if self._claimed.claim in (None, found):
                self._claimed.claims.append(claimant)
            assert self._claimed.claim is not None
            return self._claimed.claim

        return await self.steps(self._server, "transfer claim", effect)

    async def release(self, claimant: Claimant) -> None:
        def effect() -> None:
            holding = self._claimed.claim
            if holding is not None and holding.is_of(claimant):
                self._claimed.claims.append(None)

        await self.steps(self._server, "release claim", effect)


@dataclass(slots=True)
class Message:
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
    """ProcessSteps of the delay queues whose queue does not exist; 0 is the work queue."""
    without_quorum: set[int] = field(default_factory=set)
    """ProcessSteps of the queues that neither confirm nor refuse until `regain_quorum`."""
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
        for number, message in unconfirmed:
            self.put(message, number)

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
    """Number of deliveries that one consumer holds. `served` is the number of the last message it
    got, among all that the queue handed out."""

    def __init__(self, prefetch: int, number: int) -> None:
        self.prefetch = prefetch
        self.number = number
        self.count = 0
        self.handed_out = 0
        self.served = 0
        self.freed = asyncio.Event()


CONFIRM_DEADLINE = timedelta(seconds=10)
"""Time that a publish waits for a queue without a quorum."""


class MemoryDelivery:
    def __init__(
        self, broker: MemoryBroker, message: Message, *, dead: bool, lease: ConsumerPlaces
    ) -> None:
        self._broker = broker
        self._message = message
        self._dead = dead
        self._lease = lease
        self.number = lease.handed_out
        self.redelivered = message.redelivered
        self.failed_deliveries = message.failed_deliveries
        self._since = broker.queues.clock.elapsed()

    @property
    def body(self) -> bytes:
        return self._message.body

    @property
    def waited(self) -> timedelta:
        return self._broker.queues.clock.elapsed() - self._since

    @property
    def is_leased(self) -> bool:
        return self in self._broker.leased

    async def ack(self) -> None:
        await self._broker.steps("broker", "ack", lambda: self._end("ack"))

    async def give_back(self) -> None:
        await self._broker.steps("broker", "give_back", lambda: self._end("give_back"))

    async def dead_letter(self) -> None:
        await self._broker.steps("broker", "dead_letter", lambda: self._end("dead_letter"))

    def _end(self, how: str) -> None:
        if not self.is_leased:
            raise BrokerUnavailable("the channel of this delivery is lost")
        self._broker.leased.discard(self)
        queues = self._broker.queues
        self._forget(queues)
        if how == "give_back":
            self._return(queues, failed=False)
        elif how == "dead_letter":
            queues.dead_letter_message(self._message)

    def lost(self) -> None:
        """Requeue the message, because its connection broke."""
        queues = self._broker.queues
        self._forget(queues)
        self._return(queues, failed=True)

    def _forget(self, queues: BrokerQueues) -> None:
        self._lease.count -= 1
        self._lease.freed.set()
        if self._dead:
            queues.unacked_dead -= 1
        else:
            queues.unacked -= 1

    def _return(self, queues: BrokerQueues, *, failed: bool) -> None:
        if self._dead:
            queues.dead.appendleft(self._message)
            queues.wake()
        else:
            queues.put_back(self._message, failed=failed, limit=self._broker.delivery_limit)


class MemoryBroker:
    """`Broker` of one process over shared `Queues`; `delayed` counts the messages in the delay
    queues, which the brokers of all queues share."""

    def __init__(
        self,
        queues: BrokerQueues,
        delayed: Callable[[], int],
        steps: ProcessSteps,
        delivery_limit: int = 20,
    ) -> None:
        self.queues = queues
        self._delayed = delayed
        self.steps = steps
        self.delivery_limit = delivery_limit
        self.leased: set[MemoryDelivery] = set()
        self._closed = False
        steps.when_stopped.append(self.disconnect)

    def disconnect(self) -> None:
        """Break the connection: requeue all leased messages, newest first to keep their order."""
        leased, self.leased = self.leased, set()
        for delivery in sorted(leased, key=lambda each: each.number, reverse=True):
            delivery.lost()

    async def publish(self, message_id: UUID, body: bytes, delay_seconds: int = 0) -> None:
        if delay_seconds and delay_seconds not in DELAY_SECONDS:
            raise ValueError(f"{delay_seconds} s is no step of the delay queues")

        def effect() -> None:
            queues = self.queues
            if self._closed:
                raise NotPublished("the broker's connection was closed")
            if delay_seconds in queues.missing or not (queues.declared or delay_seconds):
                raise Unroutable
            message = Message(message_id, body)
            if delay_seconds not in queues.without_quorum:
                queues.put(message, delay_seconds)
            elif (delay_seconds, message) not in queues.unconfirmed:
                queues.unconfirmed.append((delay_seconds, message))

        await self.steps("broker", "publish", effect)
        if delay_seconds in self.queues.without_quorum:
            await self._confirmed(delay_seconds, message_id, body)

    async def _confirmed(self, step: int, message_id: UUID, body: bytes) -> None:
        """Wait as long as RabbitMQ's adapter does. Raises: BrokerUnavailable."""
        queues = self.queues
        await queues.clock.sleep(CONFIRM_DEADLINE)
        if (step, Message(message_id, body)) in queues.unconfirmed:
            raise BrokerUnavailable("the message was not confirmed in time")

    async def consume(self, prefetch: int) -> AsyncIterator[MemoryDelivery]:
        lease = self.queues.lease(prefetch)
        self.queues.consumers += 1
        try:
            while not self._closed and not self.steps.stopped:
                if lease.count >= prefetch:
                    lease.freed.clear()
                    await lease.freed.wait()
                elif (message := await self.queues.next_for(lease)) is not None:
                    self.queues.unacked += 1
                    yield self._hand_out(message, lease, dead=False)
        finally:
            self.queues.consumers -= 1

    async def consume_dead(self, prefetch: int) -> AsyncIterator[MemoryDelivery]:
        lease = self.queues.lease(prefetch)
        while not self._closed and not self.steps.stopped:
            if lease.count >= prefetch:
                lease.freed.clear()
                await lease.freed.wait()
            elif self.queues.dead:
                message = self.queues.dead.popleft()
                self.queues.unacked_dead += 1
                yield self._hand_out(message, lease, dead=True)
            else:
                return

    def _hand_out(self, message: Message, lease: ConsumerPlaces, *, dead: bool) -> MemoryDelivery:
        delivery = MemoryDelivery(self, message, dead=dead, lease=lease)
        lease.count += 1
        lease.handed_out += 1
        self.leased.add(delivery)
        return delivery

    @step("broker")
    def depths(self) -> Depths:
        queues = self.queues
        delayed = self._delayed()
        return Depths(
            work=len(queues.ready) + queues.unacked,
            delayed=delayed,
            dead=len(queues.dead) + queues.unacked_dead,
            consumers=queues.consumers,
            leased=queues.unacked + queues.unacked_dead,
        )

    @step("broker")
    def ready(self) -> int:
        self.queues.ripen()
        return len(self.queues.ready)

    async def exists(self) -> bool:
        return await self.steps("broker", "exists", lambda: self.queues.declared)

    @step("broker")
    def declare(self, *, first: bool = False) -> None:
        found, wanted = self.queues.delivery_limit, self.delivery_limit
        if self.queues.declared and found != wanted:
            raise BrokerRefused(f"the work queue has x-delivery-limit {found}, wanted is {wanted}")
        self.queues.ripen()  # what is due before goes nowhere
        self.queues.declared, self.queues.delivery_limit = True, wanted

    @step("broker")
    def delete(self) -> None:
        self.queues.delete()
        self.queues.declared = False

    async def close(self) -> None:
        self._closed = True
        self.disconnect()
        self.queues.wake()
