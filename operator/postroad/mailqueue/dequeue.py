"""Dequeue: references come from the broker, `domain.dispatch` decides, this module carries out.

Several references are decided at the same time and handed out in the order they came. A server that
is away makes a reference wait here, with backoff, within the consumer's prefetch (invariant 9); one
that waited for long goes through the ladder meanwhile, since a broker that gets no ack for half an
hour takes that for a broken consumer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from uuid import UUID

from postroad.domain.dispatch import (
    Arrival,
    Later,
    Verdict,
    decide,
    decide_claimed,
    deletes_bytes,
)
from postroad.domain.ladder import hop_after, step_to
from postroad.domain.references import Reference
from postroad.domain.turns import Mark, Turn
from postroad.domain.wire import decode
from postroad.errors import BrokerUnavailable, PostroadError, ServerError, UnreadableReference
from postroad.mailqueue import dead, protocol
from postroad.mailqueue.endings import SERVER_LATER, ack, delete_and_ack, later
from postroad.mailqueue.engine import Engine
from postroad.mailqueue.items import FINISHED, DistributedItem
from postroad.mailqueue.leases import Leases
from postroad.ports.broker import Delivery
from postroad.ports.view import Record
from postroad.telemetry import metrics


async def dequeue(engine: Engine, leases: Leases, prefetch: int) -> AsyncIterator[DistributedItem]:
    """Yield items as they become due. See `MailQueue.dequeue`."""
    engine.check_open()
    pipeline = _Pipeline(engine, leases, prefetch)
    try:
        while (item := await pipeline.next_item()) is not None:
            yield item
    finally:
        await pipeline.close()


class _Pipeline:
    """One consumer. References become tasks; their items leave in the order of arrival."""

    def __init__(self, engine: Engine, leases: Leases, prefetch: int) -> None:
        self._engine = engine
        self._leases = leases
        self._deliveries = engine.broker.consume(prefetch)
        self._tasks: deque[asyncio.Task[DistributedItem | None]] = deque()
        self._arrived = asyncio.Event()
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            async for delivery in self._deliveries:
                dispatch = _Dispatch(self._engine, self._leases, delivery)
                self._tasks.append(asyncio.ensure_future(dispatch.run()))
                self._arrived.set()
        finally:
            self._arrived.set()

    async def next_item(self) -> DistributedItem | None:
        """Return the next item; None when the queue was closed. Raises: permanent errors only."""
        while True:
            if self._tasks:
                item = await asyncio.shield(self._tasks[0])
                self._tasks.popleft()
                if item is not None:
                    return item
            elif self._reader.done():
                self._reader.result()
                return None
            else:
                self._arrived.clear()
                await self._arrived.wait()

    async def close(self) -> None:
        """Cancel the consumer; what was not handed out goes back."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(
            *(each.give_back() for each in results if isinstance(each, DistributedItem)),
            return_exceptions=True,
        )
        aclose = getattr(self._deliveries, "aclose", None)
        if aclose is not None:
            await aclose()


class _Dispatch:
    """Carries out what is decided about one delivery. It has one owner for all its claims, so that
    an attempt that stopped between two of them is not in its own way."""

    def __init__(self, engine: Engine, leases: Leases, delivery: Delivery) -> None:
        self._engine = engine
        self._leases = leases
        self._delivery = delivery
        self._owner = UUID(int=engine.chance.bits(128))

    async def run(self) -> DistributedItem | None:
        """Return the item to hand out, or None when the message needed no attempt.

        Waits out servers that are away, as long as the message is ours: the broker gives what was
        on a lost channel to somebody else. A cancelled dispatch gives the message back.
        """
        clock, backoff = self._engine.clock, self._engine.backoff()
        until = clock.elapsed() + self._engine.timing.hold
        try:
            while self._delivery.is_leased and not self._engine.closed:
                try:
                    if clock.elapsed() >= until:
                        await self._put_off()
                        return None
                    return await self._once()
                except PostroadError as error:
                    # Whatever a server refuses (credentials that were changed, say) is mended by
                    # somebody; the mail waits for that.
                    if not error.transient and not isinstance(error, ServerError):
                        raise
                    self._engine.log.debug(
                        "a reference waits for a server", error=type(error).__name__
                    )
                    await backoff.wait()
                except Exception:
                    # No single message stops the others: the dead queue gives it back, counted.
                    self._engine.log.exception("a reference could not be dispatched")
                    await _dead_letter(self._delivery)
                    return None
        except asyncio.CancelledError:
            await _give_back(self._delivery)
            raise
        return None

    async def _put_off(self) -> None:
        """Let a reference wait in the ladder. To give it back would count as a failed delivery
        before RabbitMQ 4, and it would come again at once."""
        delivery = self._delivery
        reference = decode(delivery.body).again(crashes=delivery.failed_deliveries)
        due = step_to(reference.due_at, self._engine.clock.now())
        self._count("put off")
        await later(self._engine, delivery, reference, due or SERVER_LATER)

    async def _once(self) -> DistributedItem | None:
        engine, delivery = self._engine, self._delivery
        try:
            reference = decode(delivery.body)
        except UnreadableReference:
            self._count("unreadable")
            await _dead_letter(delivery)
            return None
        limits = await engine.bearings.limits()
        mark = await engine.view.mark(reference.key)
        in_hand = reference.key.enqueue_id in engine.in_hand
        arrival = Arrival(
            now=engine.clock.now(),
            redelivered=delivery.redelivered or in_hand,
            # What we still have in hand broke nobody down: only the channel was lost.
            failed_deliveries=0 if in_hand else delivery.failed_deliveries,
            browse_start=limits.browse_start,
            hop=engine.timing.hop,
            limit=engine.delivery_limit,
            draw=engine.chance.uniform(),
        )
        return await self._carry_out(decide(reference, mark, arrival), reference, mark)

    async def _carry_out(
        self,
        decision: Verdict | Later,
        reference: Reference,
        mark: Mark | None,
    ) -> DistributedItem | None:
        engine, delivery = self._engine, self._delivery
        if isinstance(decision, Later):
            self._count("hop")
            await later(engine, delivery, decision.reference, decision.delay_seconds)
            return None
        if decision is Verdict.SETTLE:
            self._count("marked" if mark else "finished")
            await self._settle(reference, mark)
            return None
        turn = await self._turn(reference)
        if turn is None:
            # The message has no envelope and its row is gone: nothing that could be attempted.
            self._count("unreadable")
            await _dead_letter(delivery)
            return None
        if decision is Verdict.ATTEMPT and turn.enqueue_id in engine.in_hand:
            await self._hop(reference)
            return None
        if decision is Verdict.ATTEMPT:
            return self._item(turn, reference, {}, claimed=False)
        if decision is Verdict.CLAIM:
            return await self._claim(turn, reference)
        if decision is Verdict.FINISH:
            await protocol.finish(engine, turn, mark or Mark())
        else:
            standing = await dead.bury(engine, turn, turn.envelope, dead.OVER_THE_LIMIT)
            await protocol.finish(engine, turn, standing or Mark())
        await ack(engine, delivery)
        return None

    async def _claim(self, turn: Turn, reference: Reference) -> DistributedItem | None:
        """Take the claims on the turn and on those it may follow too closely; then read the marks
        again, because whoever had the claim before us marked first."""
        engine, view, owner = self._engine, self._engine.view, self._owner
        wanted = [*(each.enqueue_id for each in reference.previous), turn.enqueue_id]
        for taken, enqueue_id in enumerate(wanted):
            if not await view.claim(enqueue_id, owner, engine.timing.claim):
                self._count("claimed")
                await asyncio.gather(*(view.release_claim(each, owner) for each in wanted[:taken]))
                await self._hop(reference)
                return None
        mark = await view.mark(reference.key)
        previous = [await view.mark(each) for each in reference.previous]
        verdict = decide_claimed(mark, previous)
        if verdict is Verdict.ATTEMPT and reference.crashes and await dead.finish(engine, turn):
            await ack(engine, self._delivery)
            return None
        if verdict is Verdict.ATTEMPT:
            records = await view.records(turn.mail_id)
            return await self._claimed_item(turn, reference, records)
        if verdict is Verdict.SETTLE and mark is None:
            await view.mark_delivered(turn.key, engine.clock.now(), turn.traits)
            mark = Mark(delivered_at=engine.clock.now())
        return await self._carry_out(verdict, reference, mark)

    async def _claimed_item(
        self, turn: Turn, reference: Reference, records: Mapping[str, Record]
    ) -> DistributedItem | None:
        if turn.enqueue_id in self._engine.in_hand:
            await self._hop(reference)
            return None
        item = self._item(turn, reference, records, claimed=True)
        finished = {each.recipient for each in records.values() if each.outcome.kind in FINISHED}
        if not finished.issuperset(turn.envelope.recipients):
            return item
        # Everybody is finished; only the ending was lost.
        self._count("marked")
        try:
            if item.failures:
                failures = sorted(set(item.failures.values()))
                await item.reject("; ".join(failures) or "delivery failed")
            else:
                await item.done()
        except BaseException:
            await (
                item.let_go()
            )  # else it would stay in hand, and each repetition would find it there
            raise
        return None

    def _item(
        self,
        turn: Turn,
        reference: Reference,
        records: Mapping[str, Record],
        *,
        claimed: bool,
    ) -> DistributedItem:
        before = tuple(each.enqueue_id for each in reference.previous) if claimed else ()
        lease = self._leases.hold(turn.enqueue_id, self._owner, claimed=claimed, before=before)
        return DistributedItem(self._engine, turn, reference, self._delivery, lease, records)

    async def _settle(self, reference: Reference, mark: Mark | None) -> None:
        if mark is not None and mark.is_final and deletes_bytes(mark):
            await delete_and_ack(self._engine, self._delivery, reference)
        else:
            await ack(self._engine, self._delivery)

    async def _hop(self, reference: Reference) -> None:
        seconds = hop_after(0, self._engine.timing.hop, 0.0)
        await later(self._engine, self._delivery, reference.again(), seconds)

    async def _turn(self, reference: Reference) -> Turn | None:
        return reference.turn or await self._engine.view.row(reference.key)

    def _count(self, reason: str) -> None:
        metrics.SKIPPED.labels(self._engine.label, reason).inc()


async def _dead_letter(delivery: Delivery) -> None:
    try:
        await delivery.dead_letter()
    except BrokerUnavailable:
        pass  # the channel is gone: the message comes again


async def _give_back(delivery: Delivery) -> None:
    try:
        await delivery.give_back()
    except BrokerUnavailable:
        pass  # the channel is gone, and the message is back already
