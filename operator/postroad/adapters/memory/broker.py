"""A broker in memory with RabbitMQ's failures: one process's connection to the queues.

A connection that breaks requeues its unacknowledged messages. A queue without a quorum neither
confirms nor refuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from uuid import UUID

from postroad.adapters.memory.fault_injection import FaultInjector
from postroad.adapters.memory.queues import BrokerQueues, ConsumerPlaces, Message
from postroad.errors import BrokerRefused, BrokerUnavailable, NotPublished, Unroutable
from postroad.ports.broker import DELAY_SECONDS, Depths

CONFIRM_DEADLINE = timedelta(seconds=10)
"""How long a publish waits for a queue without a quorum."""


class MemoryDelivery:
    """A leased message."""

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
        await self._broker.faults("broker", "ack", lambda: self._end("ack"))

    async def give_back(self) -> None:
        await self._broker.faults("broker", "give_back", lambda: self._end("give_back"))

    async def dead_letter(self) -> None:
        await self._broker.faults("broker", "dead_letter", lambda: self._end("dead_letter"))

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
        faults: FaultInjector,
        delivery_limit: int = 20,
    ) -> None:
        self.queues = queues
        self._delayed = delayed
        self.faults = faults
        self.delivery_limit = delivery_limit
        self.leased: set[MemoryDelivery] = set()
        self._closed = False
        faults.when_stopped.append(self.disconnect)

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

        await self.faults("broker", "publish", effect)
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
            while not self._closed and not self.faults.stopped:
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
        while not self._closed and not self.faults.stopped:
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

    async def depths(self) -> Depths:
        def effect() -> Depths:
            queues = self.queues
            delayed = self._delayed()
            return Depths(
                work=len(queues.ready) + queues.unacked,
                delayed=delayed,
                dead=len(queues.dead) + queues.unacked_dead,
                consumers=queues.consumers,
                leased=queues.unacked + queues.unacked_dead,
            )

        return await self.faults("broker", "depths", effect)

    async def exists(self) -> bool:
        return await self.faults("broker", "exists", lambda: self.queues.declared)

    async def declare(self, *, first: bool = False) -> None:
        def effect() -> None:
            found, wanted = self.queues.delivery_limit, self.delivery_limit
            if self.queues.declared and found != wanted:
                raise BrokerRefused(
                    f"the work queue has x-delivery-limit {found}, wanted is {wanted}"
                )
            self.queues.ripen()  # what is due before goes nowhere
            self.queues.declared, self.queues.delivery_limit = True, wanted

        await self.faults("broker", "declare", effect)

    async def delete(self) -> None:
        def effect() -> None:
            self.queues.delete()
            self.queues.declared = False

        await self.faults("broker", "delete", effect)

    async def close(self) -> None:
        self._closed = True
        self.disconnect()
        self.queues.wake()
