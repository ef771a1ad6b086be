"""Dequeue: references come from the broker, and each is dispatched until it is served.

A server that is away makes a reference wait here, with backoff, within the consumer's prefetch
(invariant 9). A reference that waits while others are served, or that waited for long, goes through
the delay queues meanwhile: others use its place in the prefetch, and a broker that gets no ack for
half an hour takes the consumer for broken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from postroad.distributed.dequeue.dispatch import DispatchPipeline, PrefetchPlace, ReferenceDispatch
from postroad.distributed.dequeue.items import DistributedItem
from postroad.distributed.dequeue.leases import MailLeases, WaitLimits
from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries.endings import SERVER_RETRY_SECONDS, publish_again
from postroad.domain.queues.dispatch import Redeliver
from postroad.domain.queues.names import beside, next_delay
from postroad.domain.queues.references import decode
from postroad.errors import BrokerUnavailable, PostroadError, ServerError, Undecodable
from postroad.ports.broker import Delivery
from postroad.ports.mail_queue import check_prefetch


async def dequeue(
    engine: Engine, leases: MailLeases, prefetch: int
) -> AsyncIterator[DistributedItem]:
    """Yield items as they become due. See `MailQueue.dequeue`."""
    check_prefetch(prefetch)
    engine.check_open()
    wait_limits = WaitLimits(engine)

    async def dispatch(delivery: Delivery, place: PrefetchPlace) -> DistributedItem | None:
        steps = ReferenceDispatch(engine, leases, delivery, place)
        return await _WaitingReference(engine, wait_limits, delivery, steps).served()

    pipeline = DispatchPipeline(engine.broker.consume(prefetch), prefetch, dispatch)
    try:
        while (item := await pipeline.next_item()) is not None:
            yield item
    finally:
        await pipeline.close()


class _WaitingReference:
    """A delivery whose dispatch is tried until the servers answer, or that is deferred."""

    def __init__(
        self,
        engine: Engine,
        wait_limits: WaitLimits,
        delivery: Delivery,
        dispatch: ReferenceDispatch,
    ) -> None:
        self._engine = engine
        self._wait_limits = wait_limits
        self._delivery = delivery
        self._dispatch = dispatch
        self._deferrals: deque[Redeliver] = deque()
        """Messages published to defer it; an error leaves open whether the broker has it. Two delay
        queues, as one of them may take nothing."""

    async def served(self) -> DistributedItem | None:
        """Return the item to hand out, or None when the message needed no attempt. Waits out
        servers that are away, as long as the delivery is leased: the broker gives the messages of a
        lost channel to another consumer. A cancelled dispatch gives the message back."""
        since, backoff = self._engine.clock.elapsed(), self._engine.backoff()
        defers = False
        try:
            while self._delivery.is_leased and not self._engine.closed:
                try:
                    if defers:
                        await self._defer()
                        return None
                    item = await self._dispatch.run()
                    self._wait_limits.was_served()
                    return item
                except Undecodable:
                    # Another consumer may decode it, or this one after an upgrade.
                    defers = True
                except PostroadError as error:
                    # An administrator mends what a server refuses (changed credentials, for
                    # example); the mail waits for that.
                    if not error.transient and not isinstance(error, ServerError):
                        raise
                    self._engine.log.debug(
                        "a reference waits for a server", error=type(error).__name__
                    )
                    # Deferring needs the broker: where it fails too, the dispatch is tried again in
                    # between.
                    defers = not defers and await self._wait_limits.is_over(
                        since, self._dispatch.key, error
                    )
                    if not defers:
                        await backoff.wait()
                except Exception:
                    # One message must not stop the others: it goes to the dead queue, which gives
                    # it back and counts a crash.
                    self._engine.log.exception("a reference could not be dispatched")
                    await self._dispatch.dead_letter()
                    return None
        except asyncio.CancelledError:
            await self._give_back()
            raise
        return None

    async def _defer(self) -> None:
        """Let a reference wait in the delay queues. Given back, it would count as a failed delivery
        before RabbitMQ 4, and come again at once."""
        engine, delivery, redelivery = self._engine, self._delivery, self._dispatch.redelivery
        if not self._deferrals:
            reference = decode(delivery.body).again(crashes=delivery.failed_deliveries)
            step = next_delay(reference.due_at, engine.limits_cache.now()) or SERVER_RETRY_SECONDS
            self._deferrals.extend((Redeliver(reference, step), Redeliver(reference, beside(step))))
            if redelivery is not None and redelivery.delay_seconds == step:
                self._deferrals.rotate()
        deferral = self._deferrals[0]
        self._deferrals.rotate()
        self._dispatch.was_deferred = True
        await publish_again(engine, delivery, deferral.reference, deferral.delay_seconds)
        self._dispatch.count("unserved")
        # The reference would come back before its claims lapse, and wait for itself.
        await self._dispatch.release_claims()

    async def _give_back(self) -> None:
        try:
            await self._delivery.give_back()
        except BrokerUnavailable:
            pass  # the channel is gone, and the message is back already
