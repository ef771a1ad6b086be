"""Dispatch: `domain.queues.dispatch` decides about one reference, this module carries out.

It reads the mark and the limits, takes the claims that the decision asks for, and hands the entry
out, replaces it, finishes it or publishes the reference again.

One consumer's references on their way to items: several at the same time, the first that is
ready is handed out first.

Order is roughly that of arrival: of those that are ready, the earliest leaves first, and one that
waits for a server delays none behind it (invariant 8). References being dispatched and items in
flight together are at most the prefetch, also when the broker's channel is lost and the next one
brings as many again (invariant 11)."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace as copy
from datetime import timedelta
from itertools import count
from uuid import UUID

from postroad.distributed.dequeue.items import FINISHED, DistributedItem
from postroad.distributed.dequeue.leases import MailLeases
from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries import dead_letters, replacement
from postroad.distributed.entries.endings import ack, delete_and_ack, publish_again
from postroad.distributed.entries.live_slices import rescue_if_late
from postroad.domain.delivery.retries import DONE, Reject
from postroad.domain.queues.dispatch import (
    Redeliver,
    ReferenceArrival,
    Verdict,
    decide,
    decide_claimed,
    deletes_bytes,
)
from postroad.domain.queues.entries import Change, Entry, EntryKey, Mark, UndecodableRow
from postroad.domain.queues.names import redelivery_delay_after
from postroad.domain.queues.references import Reference, decode
from postroad.errors import BrokerUnavailable, Undecodable, UnreadableReference
from postroad.ports.broker import Delivery
from postroad.ports.view import Record
from postroad.telemetry import metrics

_Task = asyncio.Task[DistributedItem | None]


class PrefetchPlace:
    """One place of a consumer's prefetch: taken by a reference, kept by its item until it ends."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_free = False

    def free(self) -> None:
        """Free the place for the next reference. Idempotent."""
        if not self._is_free:
            self._is_free = True
            self._places.release()


Dispatch = Callable[[Delivery, PrefetchPlace], Coroutine[None, None, DistributedItem | None]]
"""Makes an item of a delivery, or None when there is nothing to attempt. The item's lease frees the
place when it ends."""


class DispatchPipeline:
    def __init__(
        self, deliveries: AsyncIterator[Delivery], prefetch: int, dispatch: Dispatch
    ) -> None:
        self._deliveries = deliveries
        self._dispatch = dispatch
        self._places = asyncio.Semaphore(prefetch)
        self._running: set[_Task] = set()
        self._ready: list[tuple[int, _Task]] = []
        self._changed = asyncio.Event()
        self._reader = asyncio.ensure_future(self._read())

    async def next_item(self) -> DistributedItem | None:
        """Return the next item; None when the queue was closed. Raises: permanent errors only."""
        while True:
            if self._ready:
                return heapq.heappop(self._ready)[1].result()
            if self._reader.done() and not self._running:
                self._reader.result()
                return None
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Cancel the consumer; what was not handed out goes back."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        left = {*self._running, *(task for _, task in self._ready)}
        for task in left:
            task.cancel()
        results = await asyncio.gather(*left, return_exceptions=True)
        await asyncio.gather(
            *(each.give_back() for each in results if isinstance(each, DistributedItem)),
            return_exceptions=True,
        )
        aclose = getattr(self._deliveries, "aclose", None)
        if aclose is not None:
            await aclose()

    async def _read(self) -> None:
        """Take a place first, then a delivery: the subscription keeps what the broker sent without
        a place for it, and gives it back at the end."""
        try:
            for number in count():
                await self._places.acquire()
                place = PrefetchPlace(self._places)
                try:
                    delivery = await anext(self._deliveries)
                except StopAsyncIteration:
                    return
                task = asyncio.ensure_future(self._dispatch(delivery, place))
                self._running.add(task)
                task.add_done_callback(self._when_done(number, place))
        finally:
            self._changed.set()

    def _when_done(self, number: int, place: PrefetchPlace) -> Callable[[_Task], None]:
        def note(task: _Task) -> None:
            self._running.discard(task)
            if task.cancelled() or (task.exception() is None and task.result() is None):
                place.free()
            else:
                heapq.heappush(self._ready, (number, task))
            self._changed.set()

        return note


class ReferenceDispatch:
    """The dispatch of one delivery. All its claims have one owner, so that a run that stopped
    between two claims does not exclude the next one."""

    def __init__(
        self, engine: Engine, leases: MailLeases, delivery: Delivery, place: PrefetchPlace
    ) -> None:
        self._engine = engine
        self._leases = leases
        self._delivery = delivery
        self._place = place
        self._owner = UUID(int=engine.randomness.bits(128))
        self._since = timedelta(0)
        """When the mark began to be read."""
        began = engine.clock.elapsed() - delivery.waited
        self._lease_until = began + engine.timing.longest_mail_lease
        self._claims: list[UUID] = []
        """The claims that were requested, whatever the reply."""
        self.key: EntryKey | None = None
        """The entry's, once the reference was decoded."""
        self.redelivery: Redeliver | None = None
        """Message that was published; an error leaves open whether the broker has it."""
        self.was_deferred = False
        """True if the reference was published to wait, with the same doubt."""

    async def run(self) -> DistributedItem | None:
        """Return the item to hand out, or None when the message needed no attempt. May be run again
        after an error. Raises: ServerError, Undecodable."""
        engine, delivery = self._engine, self._delivery
        try:
            reference = decode(delivery.body)
        except UnreadableReference:
            self.count("unreadable")
            await self.dead_letter()
            return None
        self.key = reference.key
        if self.redelivery is not None or self.was_deferred:
            reference = copy(reference, claim=True)  # another message about it may exist by now
        self._since = engine.clock.elapsed()
        limits = await engine.limits_cache.limits()
        mark = await engine.view.mark(reference.key)
        in_flight = self._is_in_flight(reference)
        arrival = ReferenceArrival(
            now=engine.limits_cache.now(),
            redelivered=delivery.redelivered or in_flight,
            # Still leased here: redelivered because the channel was lost, not because a consumer
            # crashed.
            failed_deliveries=0 if in_flight else delivery.failed_deliveries,
            browse_start=limits.browse_start,
            redelivery_delay=engine.timing.redelivery_delay,
            limit=engine.delivery_limit,
            draw=engine.randomness.uniform(),
        )
        return await self._carry_out(decide(reference, mark, arrival), reference, mark)

    async def _carry_out(
        self, decision: Verdict | Redeliver, reference: Reference, mark: Mark | None
    ) -> DistributedItem | None:
        """Take the step of a decision: see the tables below."""
        if isinstance(decision, Redeliver):
            await self._redeliver(self.redelivery or decision)
            self.count("redelivery delay")
            return None
        if (over := _WHEN_OVER.get(decision)) is not None:
            await over(self, reference, mark)
            return None
        entry = await self._entry(reference)
        if entry is None:
            # The message has no envelope and its row is gone, so there is no mail to attempt.
            self.count("unreadable")
            await self.dead_letter()
            return None
        return await _WITH_ENTRY[decision](self, entry, reference, mark)

    # Steps of a message whose entry is over

    async def _settle(self, reference: Reference, mark: Mark | None) -> None:
        self.count("marked")
        if mark is not None and mark.is_final and deletes_bytes(mark):
            await delete_and_ack(self._engine, self._delivery, reference)
        else:
            await ack(self._engine, self._delivery)

    async def _pass_over(self, reference: Reference, _mark: Mark | None) -> None:
        # The rescue before the ack: no other message knows of a mail whose row came late.
        is_late = await rescue_if_late(self._engine, reference.key)
        self.count("late" if is_late else "finished")
        await ack(self._engine, self._delivery)

    # Steps of an entry

    async def _finish(self, entry: Entry, _reference: Reference, mark: Mark | None) -> None:
        # The replacement before the ack: a crash between is a redelivery, which finishes it again.
        await replacement.finish(self._engine, entry, mark or Mark())
        await ack(self._engine, self._delivery)

    async def _give_up(
        self, entry: Entry, reference: Reference, mark: Mark | None
    ) -> DistributedItem | None:
        envelope = await dead_letters.undelivered(self._engine, entry)
        if envelope is None:
            return await self._claim(entry, reference, mark)  # only its ending was lost
        standing = await dead_letters.give_up(
            self._engine, entry, envelope, dead_letters.OVER_THE_LIMIT
        )
        await self._finish(entry, reference, standing)
        return None

    async def _replace(
        self, entry: Entry, _reference: Reference, _mark: Mark | None
    ) -> DistributedItem | None:
        """Replace the entry, as `republish` does: the message that this one repeats is in a
        consumer's hands, or meets the mark when it comes, or does not exist."""
        standing = await replacement.replace(self._engine, entry, Change.nothing(entry))
        if standing is not None:
            return await self.run()  # the entry was ended first: decide by its mark
        self.count("repetition")
        await ack(self._engine, self._delivery)
        return None

    async def _attempt(
        self, entry: Entry, reference: Reference, mark: Mark | None
    ) -> DistributedItem | None:
        if self._is_in_flight(reference):
            await self._wait_for_claim(reference)
            return None
        # Hand out without a claim only shortly after the mark was read: later, a redelivery delay
        # that began after the reading would end before this claim, and the limits would be too old.
        engine = self._engine
        if engine.clock.elapsed() - self._since < engine.timing.keep_after:
            return self._item(entry, reference, {}, claimed=False)
        return await self._claim(entry, reference, mark)

    async def _claim(
        self, entry: Entry, reference: Reference, _mark: Mark | None
    ) -> DistributedItem | None:
        """Take the claims on the entry and on those it may follow too closely; then read the marks
        again, because the claims' last owners marked first. The predecessors' marks are read before
        the entry's: cleanup writes a delivery into the entry's mark before it deletes the
        predecessor's."""
        engine, view, owner = self._engine, self._engine.view, self._owner
        snapshot = await engine.limits_cache.snapshot()
        wanted = [*(each.enqueue_id for each in reference.previous), entry.enqueue_id]
        self._claims = wanted  # before the first request: one without a reply may be a claim
        for taken, enqueue_id in enumerate(wanted):
            if not await view.claim(enqueue_id, owner, engine.timing.claim):
                self.count("claimed")
                # Before the message is published: it comes with another owner, which they refuse.
                await self._release(wanted[:taken])
                await self._wait_for_claim(reference)
                return None
        records = await view.records(entry.mail_id)
        previous = [await view.mark(each) for each in reference.previous]
        mark = await view.mark(reference.key)
        if snapshot.limits.have_passed(reference.key.slice_start):
            if mark is not None and mark.is_final:
                await self._settle(reference, mark)
            else:
                await self._release(wanted)  # a successor of late mail waits for them
                await self._pass_over(reference, mark)
            return None
        verdict = decide_claimed(mark, previous)
        if verdict is Verdict.ATTEMPT:
            if reference.crashes and await dead_letters.finish(engine, entry):
                await ack(engine, self._delivery)
                await self._release(wanted)
                return None
            engine.limits_cache.check(snapshot)
            return await self._claimed_item(entry, reference, records)
        if verdict is Verdict.SETTLE and mark is None:
            # Before the ack: cleanup deletes the predecessor's mark, which alone has the delivery.
            await view.mark_delivered(entry.key, engine.clock.now(), entry.traits)
            mark = Mark(delivered_at=engine.clock.now())
        return await self._carry_out(verdict, reference, mark)

    async def _claimed_item(
        self, entry: Entry, reference: Reference, records: Mapping[str, Record]
    ) -> DistributedItem | None:
        if self._is_in_flight(reference):
            await self._wait_for_claim(reference)
            return None
        item = self._item(entry, reference, records, claimed=True)
        finished = {each.recipient for each in records.values() if each.outcome.kind in FINISHED}
        if not finished.issuperset(entry.envelope.recipients):
            return item
        # Every recipient is finished; only the ending was lost.
        self.count("marked")
        failures = "; ".join(sorted(set(item.failures.values())))
        try:
            await item.end(Reject(failures or "delivery failed") if item.failures else DONE)
        except BaseException:
            await item.end_lease()  # an item in flight would defer every repetition of its message
            raise
        return None

    def _item(
        self,
        entry: Entry,
        reference: Reference,
        records: Mapping[str, Record],
        *,
        claimed: bool,
    ) -> DistributedItem:
        before = tuple(each.enqueue_id for each in reference.previous) if claimed else ()
        lease = self._leases.begin(
            entry.enqueue_id,
            self._owner,
            claimed=claimed,
            before=before,
            since=self._since,
            when_ended=self._place.free,
        )
        return DistributedItem(
            self._engine, entry, reference, self._delivery, lease, records, self._lease_until
        )

    def _is_in_flight(self, reference: Reference) -> bool:
        """True if this process has the entry in flight, or one that it follows. No claim shows
        that: ours are not refused, and they may have lapsed while this process was suspended."""
        keys = (reference.key, *reference.previous)
        return any(each.enqueue_id in self._engine.in_flight for each in keys)

    async def release_claims(self) -> None:
        await self._release(self._claims)

    async def dead_letter(self) -> None:
        """Let the broker move the message to the dead queue."""
        try:
            await self._delivery.dead_letter()
        except BrokerUnavailable:
            pass  # the channel is gone: the message comes again

    async def _release(self, claims: Sequence[UUID]) -> None:
        view = self._engine.view
        await asyncio.gather(*(view.release_claim(each, self._owner) for each in claims))

    async def _wait_for_claim(self, reference: Reference) -> None:
        """Publish a reference to come again when the claim of another consumer may be over."""
        delay = redelivery_delay_after(0, self._engine.timing.redelivery_delay, 0.0)
        await self._redeliver(Redeliver(reference.again(), delay))

    async def _redeliver(self, redelivery: Redeliver) -> None:
        # Kept before it is published: after an error the same message goes to the same step again,
        # so that only one is under way.
        self.redelivery = redelivery
        reference, delay_seconds = redelivery.reference, redelivery.delay_seconds
        await publish_again(self._engine, self._delivery, reference, delay_seconds)

    async def _entry(self, reference: Reference) -> Entry | None:
        entry = reference.entry or await self._engine.view.row(reference.key)
        if isinstance(entry, UndecodableRow):
            raise Undecodable(f"row {entry.enqueue_id} cannot be decoded: {entry.reason}")
        return entry

    def count(self, reason: str) -> None:
        """Count a delivery that is not handed out."""
        metrics.SKIPPED.labels(*self._engine.labels, reason).inc()


_OverStep = Callable[[ReferenceDispatch, Reference, Mark | None], Awaitable[None]]
_EntryStep = Callable[
    [ReferenceDispatch, Entry, Reference, Mark | None], Awaitable[DistributedItem | None]
]

_WHEN_OVER: Mapping[Verdict, _OverStep] = {
    Verdict.SETTLE: ReferenceDispatch._settle,
    Verdict.PASSED: ReferenceDispatch._pass_over,
}
_WITH_ENTRY: Mapping[Verdict, _EntryStep] = {
    Verdict.FINISH: ReferenceDispatch._finish,
    Verdict.GIVE_UP: ReferenceDispatch._give_up,
    Verdict.REPLACE: ReferenceDispatch._replace,
    Verdict.CLAIM: ReferenceDispatch._claim,
    Verdict.ATTEMPT: ReferenceDispatch._attempt,
}
"""The step of each verdict. Those of an entry read its row first, where the message has none."""
