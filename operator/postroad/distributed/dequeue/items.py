"""An item of the distributed engine: a leased entry in a consumer's hands, and its one ending."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace as copy
from datetime import timedelta
from enum import Enum

from postroad.distributed.dequeue.leases import MailLease
from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries import dead_letters, replacement
from postroad.distributed.entries.endings import CLEANED, ack, delete_and_ack, mark_if_passed
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.delivery.retries import (
    DONE,
    DeferItem,
    ItemEnding,
    Reject,
    RetryItem,
    check_named,
)
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.documents import LeasedMail
from postroad.domain.queues.entries import Change, Entry, Mark
from postroad.domain.queues.references import Reference
from postroad.errors import BlobMissing, BlobsUnavailable, BrokerUnavailable, EntryEnded
from postroad.ports.broker import Delivery
from postroad.ports.mail_queue import checked_ending
from postroad.ports.view import Record
from postroad.telemetry import metrics

FINISHED = frozenset({OutcomeKind.DELIVERED, OutcomeKind.FAILED})
MAX_KEPT = 1024 * 1024
"""Bytes of a content that is fetched once for all transmissions of a mail."""
BYTES_MISSING = "the bytes of the mail are missing"


class _ItemState(Enum):
    OPEN = "open"
    ENDING = "ending"
    ENDED = "ended"


class DistributedItem(LeasedMail):
    """`Item` over an entry, its message and its lease."""

    def __init__(
        self,
        engine: Engine,
        entry: Entry,
        reference: Reference,
        delivery: Delivery,
        lease: MailLease,
        records: Mapping[str, Record],
        lease_until: timedelta,
    ) -> None:
        self._engine = engine
        self._entry = entry
        self._reference = reference
        self._delivery = delivery
        self._lease = lease
        self.lease_until = lease_until
        self._outcomes = {each.recipient: each.outcome for each in records.values()}
        self._state = _ItemState.OPEN
        self._marked = False
        self._is_kept = False
        """True if the mark of the delivery has the outcomes of the attempt."""
        self._content: bytes | None = None
        self._fetching = asyncio.Lock()
        left = self._left()
        is_whole = not left or left == entry.envelope.recipients
        super().__init__(
            entry.enqueue_id,
            entry.mail_id,
            entry.envelope if is_whole else copy(entry.envelope, recipients=left),
            entry.accepted_at,
            entry.enqueued_at,
            entry.attempt,
            entry.size_bytes,
        )

    @property
    def failures(self) -> Mapping[str, str]:
        return {
            recipient: outcome.text
            for recipient, outcome in self._outcomes.items()
            if outcome.kind is OutcomeKind.FAILED
        }

    # Content

    async def content(self) -> bytes:
        async with self._fetching:
            self._check_open()
            if self._content is None:
                try:
                    found = await self._engine.blobs.get(self._entry.blob_key)
                except BlobMissing:
                    await self._end_without_bytes()
                    raise
                self._check_length(len(found))
                self._content = found
            return self._content

    def forget_content(self) -> None:
        self._content = None

    async def shape(self) -> Shape | None:
        self._check_open()
        return self._entry.shape

    async def stream(self) -> AsyncIterator[bytes]:
        self._check_open()
        if self._content is not None or self.size_bytes <= MAX_KEPT:
            yield await self.content()
            return
        length = 0
        try:
            async for chunk in self._engine.blobs.stream(self._entry.blob_key):
                length += len(chunk)
                yield chunk
        except BlobMissing:
            await self._end_without_bytes()
            raise
        self._check_length(length)  # before the mail's end is sent

    def _check_length(self, length: int) -> None:
        """Refuse bytes that were cut: a mail without its end would count as delivered, and its
        bytes would be deleted. Raises: BlobsUnavailable."""
        if length != self.size_bytes:
            raise BlobsUnavailable(
                f"the object store returned {length} of the mail's {self.size_bytes} octets"
            )

    async def _end_without_bytes(self) -> None:
        """Read the mark again: most often an administrator removed the mail meanwhile. Without a
        mark, a row and bytes there is no mail: the shared delay queues kept the message of a queue
        that was deleted, and this one has its name."""
        view, key = self._engine.view, self._entry.key
        if await view.mark(key) is None:
            if await view.row(key) is not None:
                await self.reject(BYTES_MISSING)
                return
            self._engine.log.warning("a message has neither a row nor bytes: it is dropped")
        async with _OnlyEnding(self, None):
            await ack(self._engine, self._delivery)

    # Records

    async def record(self, outcomes: Mapping[str, Outcome]) -> None:
        self._check_open()
        check_named(outcomes, self.mail.recipients)
        left = self._left()
        outcomes = {
            each: outcome
            for each, outcome in outcomes.items()
            if outcome.kind in FINISHED or each in left
        }
        known = self._outcomes | outcomes
        delivers_last = bool(outcomes) and all(
            each in known and known[each].kind is OutcomeKind.DELIVERED
            for each in (*outcomes, *self._entry.envelope.recipients)
        )
        if delivers_last and not self.failures:
            # One mark says as much as the records would, and `done` has it behind it.
            await self._mark_delivered()
        else:
            now = self._engine.clock.now()
            records = tuple(Record(each, outcome, now) for each, outcome in outcomes.items())
            await self._engine.view.record(self.mail_id, records)
        self._outcomes |= outcomes

    def _left(self) -> tuple[str, ...]:
        return tuple(
            each
            for each in self._entry.envelope.recipients
            if each not in self._outcomes or self._outcomes[each].kind not in FINISHED
        )

    async def _mark_delivered(self, outcomes: AttemptOutcomes | None = None) -> None:
        """Before browse start, maintenance may clean the mark before a process reads the delivery
        in it. The entry was replaced then, so this delivery is propagated to its successors. (Where
        the mark is cleaned already, ours stays, and a successor that names this entry reads it.)"""
        if self._marked and (outcomes is None or self._is_kept):
            return
        engine, entry, now = self._engine, self._entry, self._engine.clock.now()
        standing = await mark_if_passed(engine, entry)
        await engine.view.mark_delivered(entry.key, now, entry.traits, outcomes)
        if standing is not None:
            mark = copy(standing, delivered_at=now)
            await replacement.propagate_delivery(engine, entry, mark)
        self._marked, self._is_kept = True, outcomes is not None

    # Endings

    async def end(self, ending: ItemEnding, outcomes: AttemptOutcomes | None = None) -> None:
        ending = checked_ending(ending)
        if isinstance(ending, RetryItem | DeferItem):
            wanted = self._wanted(ending.remaining)
            if wanted and not self._marked:
                return await self._come_again(ending, wanted, outcomes)
        elif isinstance(ending, Reject):
            return await self._reject(ending, outcomes)
        async with _OnlyEnding(self, DONE):
            await self._finish_delivered(outcomes)
        return None

    async def _finish_delivered(self, outcomes: AttemptOutcomes | None) -> None:
        # The mark first: bytes that are gone without it would make a dead letter of a delivered
        # mail, and an ack without it would lose the delivery.
        await self._mark_delivered(outcomes)
        await self._delete_and_ack()

    def _wanted(self, remaining: tuple[str, ...] | None) -> tuple[str, ...]:
        left = self._left()
        if remaining is None:
            return left
        self._check_open()
        check_named(remaining, left)
        return tuple(each for each in left if each in remaining)

    async def _come_again(
        self,
        ending: RetryItem | DeferItem,
        wanted: tuple[str, ...],
        outcomes: AttemptOutcomes | None,
    ) -> None:
        engine = self._engine
        async with _OnlyEnding(self, ending):
            attempt = self.attempt + isinstance(ending, RetryItem)
            due_at = engine.moment_after(ending.delay)
            change = Change(wanted, due_at, held=False, attempt=attempt, last_error=ending.reason)
            standing = await replacement.replace(engine, self._entry, change, outcomes=outcomes)
            if standing is not None:
                await self._yield_to(standing, wanted)
            # Behind the replacement: an ack before it would leave a mail without a message.
            await ack(engine, self._delivery)

    async def _yield_to(self, standing: Mark, wanted: tuple[str, ...]) -> None:
        """Another process ended this entry first. What this attempt finished is recorded, so that
        neither a successor nor a requeue of a dead letter attempts it again."""
        engine = self._engine
        if standing.delivered_at is None and standing.ending is not None:
            if standing.ending.change is not None:
                remaining = standing.ending.change.remaining
            elif standing is CLEANED or dead_letters.is_rejected(standing):
                remaining = self._entry.envelope.recipients
            else:
                return
            finished = set(remaining) - set(wanted) - self._outcomes.keys()
            if finished:
                now = engine.clock.now()
                records = tuple(Record(each, Outcome.delivered(), now) for each in sorted(finished))
                await engine.view.record(self.mail_id, records)
        await replacement.finish(engine, self._entry, standing)

    async def _reject(self, ending: Reject, outcomes: AttemptOutcomes | None) -> None:
        # It runs to its end if the caller is cancelled, so that no mail with a dead letter waits.
        rejecting = self._engine.in_background(self._write_dead_letter(ending, outcomes))
        try:
            await asyncio.shield(rejecting)
        except asyncio.CancelledError:
            self._engine.in_background(self._give_back_behind(rejecting))
            raise

    async def _give_back_behind(self, ending: asyncio.Task[None]) -> None:
        await asyncio.wait({ending})
        await self.give_back()

    async def _write_dead_letter(self, ending: Reject, outcomes: AttemptOutcomes | None) -> None:
        async with _OnlyEnding(self, ending):
            undelivered = tuple(
                each
                for each in self._entry.envelope.recipients
                if each not in self._outcomes
                or self._outcomes[each].kind is not OutcomeKind.DELIVERED
            )
            earlier = tuple(each for each in self.failures if each not in undelivered)
            if self._marked or not (undelivered or earlier):
                await self._finish_delivered(outcomes)
            else:
                envelope = copy(self._entry.envelope, recipients=undelivered + earlier)
                standing = await dead_letters.give_up(
                    self._engine, self._entry, envelope, ending.reason, outcomes
                )
                await replacement.finish(self._engine, self._entry, standing or Mark())
                await ack(self._engine, self._delivery)
        await self._lease.release_claimed()  # a requeue takes the claim on the same entry

    async def _delete_and_ack(self) -> None:
        try:
            await delete_and_ack(self._engine, self._delivery, self._reference)
        except BrokerUnavailable:
            # The mark is durable, so the mail is over. The message comes again for the bytes: it
            # must not stay here, where it would keep its place in the prefetch.
            await self._give_message_back()

    def _check_open(self) -> None:
        self._engine.check_open()
        if self._state is not _ItemState.OPEN:
            raise EntryEnded

    async def end_lease(self) -> None:
        """End the lease alone; the message is still ours."""
        self._lease.end()
        await self._lease.release()

    async def give_back(self) -> None:
        if self._state is _ItemState.OPEN:
            self._state = _ItemState.ENDED
            await asyncio.shield(self._engine.in_background(self._return()))

    async def _return(self) -> None:
        await self.end_lease()
        await self._give_message_back()

    async def _give_message_back(self) -> None:
        try:
            await self._delivery.give_back()
        except BrokerUnavailable:
            pass  # the channel is gone, and the message is back already

    def begin_ending(self) -> None:
        self._check_open()
        self._state = _ItemState.ENDING

    def fail_ending(self) -> None:
        self._state = _ItemState.OPEN

    def finish_ending(self, ending: ItemEnding | None) -> None:
        self._state = _ItemState.ENDED
        self._lease.end()
        self._engine.on_ending()
        if ending is not None:
            metrics.ENDED.labels(*self._engine.labels, ending.name).inc()


class _OnlyEnding:
    """Makes sure that exactly one ending succeeds, and counts it; one that failed may be tried
    again. None: the message of what is no mail is dropped."""

    def __init__(self, item: DistributedItem, ending: ItemEnding | None) -> None:
        self._item, self._ending = item, ending

    async def __aenter__(self) -> None:
        self._item.begin_ending()

    async def __aexit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            return self._item.finish_ending(self._ending)
        self._item.fail_ending()
        if kind is asyncio.CancelledError:
            await self._item.give_back()
        return None
