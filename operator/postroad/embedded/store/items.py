"""An item of an embedded store: a leased entry in a consumer's hands, and its one ending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from datetime import timedelta
from enum import Enum
from functools import lru_cache
from uuid import UUID

from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.delivery.retries import (
    DONE,
    DeferItem,
    Done,
    ItemEnding,
    Reject,
    RetryItem,
    check_named,
)
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.documents import LeasedMail
from postroad.domain.values.instants import instant
from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.options import MAX_MAIL_LEASE
from postroad.embedded.log.records import DeliveryKind, cut
from postroad.embedded.log.segments import ENDED, LiveEntry
from postroad.embedded.log.spool_files import CHUNK, Kept
from postroad.embedded.store import leases
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.recovery import Work, as_dead_letter, resumed, with_recipients
from postroad.embedded.store.spool_reading import in_chunks, open_spool_file
from postroad.errors import BlobMissing, EntryEnded, PostroadError
from postroad.ports.mail_queue import checked_ending
from postroad.telemetry import metrics

KINDS = {
    OutcomeKind.DELIVERED: DeliveryKind.DELIVERED,
    OutcomeKind.FAILED: DeliveryKind.FAILED,
    OutcomeKind.DEFERRED: DeliveryKind.DEFERRED,
}
_ended_of = lru_cache(metrics.ENDED.labels)  # to look it up costs more than to count
BYTES_MISSING = "the bytes of the mail are missing or damaged"


class _Stage(Enum):
    OPEN = "open"
    ENDING = "ending"
    ENDED = "ended"


_OPEN, _ENDING, _ENDED = _Stage


class SpoolItem(LeasedMail):
    """`Item` over an entry of this store. `gone` is called once, when it ended."""

    def __init__(
        self,
        engine: Engine,
        entry: LiveEntry,
        record: EnvelopeRecord,
        kept: Kept | None,
        labels: tuple[str, str],
        gone: Callable[[SpoolItem], None],
    ) -> None:
        super().__init__(
            UUID(bytes=record.enqueue_id),
            UUID(bytes=record.mail_id),
            record.envelope,
            instant(record.accepted_us),
            instant(record.enqueued_us),
            record.attempt,
            record.size_bytes,
        )
        self._engine, self._entry, self._record = engine, entry, record
        self.lease_until = engine.clock.elapsed() + MAX_MAIL_LEASE
        self._labels, self._gone = labels, gone
        self._left = dict(zip(record.numbers, record.envelope.recipients, strict=True))
        self._addresses = dict(self._left)
        self._failures = dict(record.failures)
        self._stage = _OPEN
        self._kept = kept
        self._fetching = asyncio.Lock()

    @property
    def failures(self) -> Mapping[str, str]:
        return dict(self._failures.values())

    # Content

    async def content(self) -> bytes:
        return (await self._whole())[0]

    async def _whole(self) -> Kept:
        self._check_open()
        if self._kept is None:
            async with self._fetching:
                self._check_open()  # again: it may have ended while another caller had the lock
                if self._kept is None:
                    self._kept = await self._read()
        return self._kept

    async def _read(self) -> Kept:
        engine, record = self._engine, self._record
        try:
            found = self.at_hand()
            if found is None:
                run = engine.mail_threads.run
                found = await run(engine.spool_files.read, record.slot, record.mail_id)
        except BlobMissing:
            await self.reject(BYTES_MISSING)
            raise
        return found

    async def stream(self) -> AsyncIterator[bytes]:
        """The last chunk is only yielded when all of them have the right checksum."""
        self._check_open()
        if self._kept is not None or self.size_bytes <= CHUNK:
            yield await self.content()
            return
        try:
            async with aclosing(in_chunks(self._engine, self._record)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except BlobMissing:
            await self.reject(BYTES_MISSING)
            raise

    def at_hand(self) -> Kept | None:
        engine, record = self._engine, self._record
        if self._stage is not _OPEN or engine.failure is not None:
            return None
        if self._kept is None:
            at_hand = engine.spool_files.at_hand
            with suppress(PostroadError):  # `content` finds out what is wrong
                self._kept = at_hand(record.slot, record.mail_id, self.size_bytes)
        return self._kept

    def forget_content(self) -> None:
        self._kept = None

    async def shape(self) -> Shape | None:
        """A small content is read with it."""
        self._check_open()
        if self._kept is not None or self.size_bytes <= CHUNK:
            return (await self._whole())[1]
        try:
            file, header = await open_spool_file(self._engine, self._record)
        except BlobMissing:
            await self.reject(BYTES_MISSING)
            raise
        file.close()
        return header.shape

    # Records

    async def record(self, outcomes: Mapping[str, Outcome]) -> None:
        self._check_open()
        check_named(outcomes, self.mail.recipients)
        by_outcome: dict[tuple[DeliveryKind, str], list[int]] = {}
        for number, to in self._addresses.items():
            if (outcome := outcomes.get(to)) is not None:
                key = KINDS[outcome.kind], cut(outcome.text).decode()
                by_outcome.setdefault(key, []).append(number)
        if not by_outcome or self._is_over:
            return
        await leases.deliver(self._engine, self._record, by_outcome)
        for (kind, text), numbers in by_outcome.items():
            if kind is not DeliveryKind.DEFERRED:
                self._finish_recipients(numbers, text if kind is DeliveryKind.FAILED else None)

    def _finish_recipients(self, numbers: list[int], failure: str | None) -> None:
        for number in numbers:
            self._left.pop(number, None)
            self._failures.pop(number, None)
            if failure is not None:
                self._failures[number] = (self._addresses[number], failure)

    @property
    def _is_over(self) -> bool:
        """True if another process or an administrator ended the entry meanwhile."""
        return self._entry.state is ENDED

    # Endings

    async def end(self, ending: ItemEnding, outcomes: AttemptOutcomes | None = None) -> None:
        """Make sure that exactly one ending succeeds; one that failed may be tried again. When
        the entry was ended otherwise meanwhile, there is nothing to do."""
        ending = checked_ending(ending)
        kept: dict[int, str] = {}
        if isinstance(ending, RetryItem | DeferItem):
            kept = self._kept_for(ending.remaining)
            ending = ending if kept else DONE
        self._check_open()
        self._stage = _ENDING  # before any `await`: two endings would write two ENVELOPEs
        try:
            if not self._is_over:
                if outcomes is not None or isinstance(ending, Done | Reject):
                    # Before the ending's record, so that the sync of that has both.
                    leases.keep(self._engine, self._record, outcomes)
                await self._make(ending, kept)
        except BaseException as error:
            self._stage = _OPEN  # first: `end_lease` passes over what is not open
            if isinstance(error, asyncio.CancelledError):
                self.end_lease()
            raise
        self._leave()
        _ended_of(*self._labels, ending.name).inc()

    def _kept_for(self, remaining: tuple[str, ...] | None) -> dict[int, str]:
        if remaining is None:
            return dict(self._left)
        self._check_open()
        check_named(remaining, self._left.values())
        wanted = set(remaining)
        return {number: to for number, to in self._left.items() if to in wanted}

    async def _make(self, ending: ItemEnding, kept: dict[int, str]) -> None:
        match ending:
            case Done():
                await self._finish()
            case Reject(reason):
                await self._reject(cut(reason).decode())
            case RetryItem(delay, _, reason):
                await self._come_again(self.attempt + 1, delay, reason, kept)
            case DeferItem(delay, _, reason):
                await self._come_again(self.attempt, delay, reason, kept)

    async def _finish(self) -> None:
        await leases.finish(self._engine, self._entry, self._record, tuple(self._left))

    async def _come_again(
        self, attempt: int, delay: timedelta, error: str | None, kept: dict[int, str]
    ) -> None:
        engine, record = self._engine, self._record
        if dropped := tuple(number for number in self._left if number not in kept):
            await leases.deliver(engine, record, {(DeliveryKind.DROPPED, ""): dropped})
            if self._is_over:  # removed during the wait: an ENVELOPE would bring it back
                return
        # Made behind the wait: a hold during it would be lost.
        again = with_recipients(record, kept)._replace(
            attempt=attempt,
            due_us=engine.due_after(delay),
            error=None if error is None else cut(error).decode(),
            failures=self._failures,
            held=self._entry.held_next,
        )
        engine.replace_entry(self._entry, engine.new_entry(again))

    async def _reject(self, reason: str) -> None:
        engine = self._engine
        record = self._record._replace(failures=self._failures)
        dead_letter = as_dead_letter(record, self._left, reason)
        if dead_letter is None:
            await self._finish()
        else:  # R2: a cut would have the mail sent again, though its failure was reported
            await engine.wait_durable(engine.replace_entry(self._entry, dead_letter))

    def _leave(self) -> None:
        self._stage = _ENDED
        leases.release_orphan(self._engine, self._entry)
        self._gone(self)

    def _check_open(self) -> None:
        self._engine.check()
        if self._stage is not _OPEN:
            raise EntryEnded

    async def give_back(self) -> None:
        self.end_lease()

    def end_lease(self) -> None:
        """End the lease of an item whose consumer went away: the same entry comes again."""
        if self._stage is not _OPEN or self._engine.failure is not None:
            return
        if not self._is_over:
            again = resumed(self._record, self._work())
            if again is None:
                leases.keep(self._engine, self._record, None)
                leases.end(self._engine, self._entry, self._record)
            else:
                self._engine.replace_entry(self._entry, again)
        self._leave()

    def _work(self) -> Work:
        """Facts that recovery would know of this entry, had the process died now."""
        failures = {number: text for number, (_, text) in self._failures.items()}
        entry = self._entry
        finished = set(self._addresses) - set(self._left)
        lane, where = entry.segment.lane, entry.position
        return Work(self._record.entry_number, lane, where, finished, failures, entry.held_next)
