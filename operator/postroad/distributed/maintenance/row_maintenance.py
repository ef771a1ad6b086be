"""Maintenance of waiting mail: rows about to expire, replacements that stopped, lost messages.

A row is rolled forward at half its lifetime, so that tables may drop rows by age. Each round reads
the tables' lifetime, and each row has its own: both may change while processes run. A few mails
that wait alone in an old slice are rolled forward early, because they would hold browse start back,
and every read of waiting mail would cover the time since then. A replacement whose process ended is
normally finished by the old entry's message; a held mail has none.

Cleanup waits until slices are archived: for a limited time, in queues that are archived at all.

Nothing but cleanup deletes what an archive reads, and rows and marks stay on Cassandra's disks
until their lifetime ends, cleaned or not: waiting costs no space. How long a slice waits is counted
from when browse start was seen behind it, by the process' own clock, because a slice that mail kept
from draining is old when it is passed. A process that starts anew counts anew; the age of a slice
bounds that, so that it is cleaned before its rows expire. Source: ADR 0037.

Dead letters in maintenance: unfinished `give_up` and `requeue` operations are finished, and
dead letters older than their lifetime are discarded, with their bytes.

One process at a time goes over the dead letters; its claim is the timetable. Source: ADR 0025.

Maintenance gives mails without a message a new one, as `republish` does.

A mail that has its message after all is only replaced: claims and marks prevent a second delivery.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from uuid import UUID

from postroad.distributed.administration.dead_queue import discard_dead_letter
from postroad.distributed.administration.requeue import requeue_dead_letter
from postroad.distributed.dequeue.items import FINISHED
from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.limits_cache import Beginning
from postroad.distributed.engine.timing import results
from postroad.distributed.entries import dead_letters, replacement
from postroad.distributed.entries.dead_letters import SetAside
from postroad.distributed.entries.endings import MailErrors, note
from postroad.distributed.reading.browse import WaitingMail, waiting
from postroad.domain.queues.entries import Change, Ending, EndingKind, Entry, Traits, UndecodableRow
from postroad.domain.queues.lifetimes import is_half_over, longest_archive_wait, oldest_that_waits
from postroad.domain.queues.lost_messages import LostMessageDetector, MessageCount, Messages
from postroad.domain.values.identifiers import moment_of
from postroad.errors import ClockSkew, ServerError, Undecodable
from postroad.ports.view import FOREVER, DeadLetter, Limits
from postroad.telemetry import metrics

REPAIRER = UUID(int=2)
"""Id that the process that gives new messages claims; no entry has this id."""

CLAIMED = timedelta(minutes=15)
"""Lifetime of that claim: longer than from one count to the next, which renews it."""

MAX_ROUND = timedelta(minutes=5)
"""Time for which one round gives new messages, because the rest of maintenance waits meanwhile. The
next round continues."""


class LostMessages:
    """Compares the broker's messages with the mails that wait, from one round to the next."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._detector = LostMessageDetector()
        self._owner = UUID(int=engine.randomness.bits(128))

    async def count_messages(self, now: datetime) -> MessageCount:
        """Count the broker's messages, before any waiting mail is counted. `now` is not later.
        Raises: nothing."""
        timing = self._engine.timing
        # Entries before this have been published or withdrawn, and a replacement of theirs that
        # stopped is seen by maintenance.
        before = now - timing.deadline - timing.grace
        return self._detector.begin(await self._messages(), before)

    async def repair(self, counted: MessageCount, errors: MailErrors) -> None:
        """Give new messages where some were missing for long; by one process at a time, and by none
        with a wrong clock, which can make no entries. Raises: ServerError, ConfigurationStale."""
        engine = self._engine
        wanted = self._detector.decide(counted)
        if not wanted:
            return
        if not await self._may_repair():
            self._detector.defer()
            return
        engine.log.warning(
            "the broker has fewer messages than mails wait: the oldest get new ones",
            missing=counted.missing,
            count=wanted,
        )

        async def repair(entry: Entry) -> int:
            with errors.of(entry.enqueue_id):
                if await replacement.replace(engine, entry, Change.nothing(entry)) is None:
                    metrics.REPUBLISHED.labels(*engine.labels).inc()
                    return 1
            return 0

        repaired = [each async for each in results(self._oldest(counted, wanted), repair)]
        self._detector.repaired(counted, sum(repaired))

    async def _may_repair(self) -> bool:
        try:
            await self._engine.limits_cache.check_clock()
        except ClockSkew:
            return False
        return await self._engine.view.claim(REPAIRER, self._owner, CLAIMED)

    async def _oldest(self, counted: MessageCount, wanted: int) -> AsyncIterator[Entry]:
        """Yield the oldest entries that were counted, for at most `MAX_ROUND`."""
        engine = self._engine
        until = engine.clock.elapsed() + MAX_ROUND
        async for each in waiting(engine, await engine.limits_cache.begin()):
            if each.mark is None and counted.lacks(each.row):
                yield each.row
                wanted -= 1
            if not wanted or engine.clock.elapsed() > until:
                return

    async def _messages(self) -> Messages | None:
        try:
            depths = await self._engine.broker.depths()
        except ServerError as error:
            self._engine.log.debug("messages were not counted", error=type(error).__name__)
            return None
        if depths.leased is None:
            return None
        return Messages(depths.work + depths.dead, depths.delayed, depths.leased)


ROW_PASS_INTERVAL = timedelta(minutes=10)
"""From one pass over all waiting mail to the next; much less than half of any row's lifetime."""

FEW = 10
"""Mails of one old slice that are rolled forward early. With more, the slice stays: it costs each
round, size and browse a few requests, a mail that is rolled forward some ten."""

OLD_SLICES = 100
OLD = timedelta(hours=1)
"""A slice is old after this number of slices, and never sooner than this time."""


class RowMaintenance:
    """Goes over waiting mail every `ROW_PASS_INTERVAL`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lost_messages = LostMessages(engine)
        self._due = timedelta(0)

    async def run(self) -> None:
        """Maintain waiting mail if it is time. Raises: ServerError, ConfigurationStale; and, after
        all mails, the first error of single mails, when there were very many."""
        now = self._engine.clock.elapsed()
        if now < self._due:
            return
        lifetime = await self._engine.row_lifetime() or FOREVER
        errors = MailErrors(self._engine)

        async def renew(row: UndecodableRow) -> None:
            with errors.of(row.enqueue_id):
                await self._renew(row, lifetime)

        aside = SetAside(self._engine, renew)
        began = await self._engine.limits_cache.begin()
        counted = await self._lost_messages.count_messages(began.at)

        async def maintain(each: WaitingMail) -> None:
            with errors.of(each.row.enqueue_id):
                await self._maintain(each)

        async for _ in results(self._in_need(began, counted, lifetime, aside), maintain):
            pass
        await self._lost_messages.repair(counted, errors)
        aside.publish()
        errors.check()
        self._due = now + ROW_PASS_INTERVAL
        errors.end()

    async def _in_need(
        self, began: Beginning, counted: MessageCount, lifetime: timedelta, aside: SetAside
    ) -> AsyncIterator[WaitingMail]:
        engine, now = self._engine, began.at
        alone = _Alone(now, engine.configuration.effective().writing.slice_window)
        async for each in waiting(engine, began, aside=aside):
            if each.mark is None:
                counted.add(each.row)
            for lonely in alone.begin_slice(each.row.key.slice_start):
                yield lonely
            if _needs_maintenance(each, now, lifetime, engine.timing.grace):
                yield each
            else:
                alone.add(each)
        for lonely in alone.end():
            yield lonely

    async def _maintain(self, each: WaitingMail) -> None:
        if each.mark is not None:
            await replacement.finish(self._engine, each.row, each.mark)
        else:
            await self._roll_forward(each.row)

    async def _roll_forward(self, row: Entry) -> None:
        engine = self._engine
        await self._renew_records(row.mail_id)
        standing = await replacement.replace(engine, row, Change.nothing(row))
        if standing is None:
            metrics.ROLLED_FORWARD.labels(*engine.labels).inc()

    async def _renew(self, row: UndecodableRow, lifetime: timedelta) -> None:
        """Renew a row that is set aside, as it cannot get a new entry: write it again as it is
        stored, for a release that can decode it; but not where cleanup may be about to delete
        it."""
        engine = self._engine
        if row.remaining is not None and row.remaining > lifetime / 2:
            return
        if not (await engine.limits_cache.limits()).have_passed(row.key.slice_start):
            if row.mail_id is not None:
                await self._renew_records(row.mail_id)
            await engine.view.renew_row(row.key)
            await self._end_if_passed(row)

    async def _end_if_passed(self, row: UndecodableRow) -> None:
        """End a row that browse start passed before it was renewed: every row there was over, and
        its mark may be cleaned away. The machine was paused meanwhile, or the process suspended,
        and the row that is back without a mark would be taken for late mail. The limits are read
        from the view, because to a paused machine its cached ones look fresh (ADR 0016)."""
        view = self._engine.view
        passed = (await view.limits()).have_passed(row.key.slice_start)
        if passed and await view.row(row.key) is not None:
            ending = Ending(EndingKind.WITHDRAWN, self._engine.clock.now())
            await view.end(row.key, ending, Traits(()))

    async def _renew_records(self, mail_id: UUID) -> None:
        """Write the records of finished recipients anew: they have the same lifetime as rows, and a
        mail that is held for longer needs them when it is released."""
        try:
            records = (await self._engine.view.records(mail_id)).values()
        except Undecodable:
            note(
                self._engine, mail_id
            )  # the row is renewed all the same: without it the mail is lost
            return
        finished = tuple(record for record in records if record.outcome.kind in FINISHED)
        if finished:
            await self._engine.view.record(mail_id, finished)


def _needs_maintenance(
    each: WaitingMail, now: datetime, lifetime: timedelta, grace: timedelta
) -> bool:
    """True if a replacement stopped half way, or a row is due to be rolled forward."""
    if each.mark is not None:
        return each.mark.ending is not None and now - each.mark.ending.at > grace
    return is_half_over(now - each.row.enqueued_at, each.row.remaining, lifetime)


class _Alone:
    """Finds the mails that wait alone in old slices, while all waiting mail is read in order. A
    slice with a mail that is due soon stays: that mail leaves by itself, and a consumer may have it
    in flight."""

    def __init__(self, now: datetime, window: timedelta) -> None:
        self._before = now - max(OLD_SLICES * window, OLD)
        self._soon = now + ROW_PASS_INTERVAL
        self._slice: datetime | None = None
        self._found: list[WaitingMail] = []
        self._stays = False

    def begin_slice(self, slice_start: datetime) -> list[WaitingMail]:
        """Begin a slice; return the mails that were alone in the one before."""
        if slice_start == self._slice:
            return []
        found = self.end()
        self._slice, self._found = slice_start, []
        self._stays = slice_start >= self._before
        return found

    def add(self, each: WaitingMail) -> None:
        due_at = each.row.due_at
        is_idle = each.row.held or (due_at is not None and due_at > self._soon)
        self._stays |= each.mark is not None or not is_idle or len(self._found) == FEW
        if not self._stays:
            self._found.append(each)

    def end(self) -> list[WaitingMail]:
        """Return the mails that were alone in the last slice."""
        return [] if self._stays else self._found


STEPS = 16
"""Places of browse start that are remembered over the longest wait."""


class ArchiveWait:
    """Remembers when this process saw browse start where."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: list[tuple[datetime, timedelta]] = []

    async def until(self, limits: Limits, before: datetime) -> datetime:
        """Return the moment from which on slices wait; `before`, up to where cleanup may go
        otherwise, when none does. Raises: ViewError, ClockSkew."""
        archived = limits.archived_through
        if archived is None or archived >= before:
            self._seen.clear()
            return before
        lifetime = await self._engine.row_lifetime() or FOREVER
        longest, now = longest_archive_wait(lifetime), self._engine.clock.elapsed()
        cleaned = limits.content_start
        self._seen = [each for each in self._seen if cleaned is None or each[0] > cleaned]
        if not self._seen or now - self._seen[-1][1] >= longest / STEPS:
            self._seen.append((before, now))
        over = [place for place, since in self._seen if now - since >= longest]
        oldest = oldest_that_waits(await self._engine.limits_cache.view_now(), lifetime)
        return min(before, max(archived, oldest, *over))


CLAIM_ID = UUID(int=3)
"""Id that the process that goes over the dead letters claims; no entry has this id."""

DEAD_LETTER_PASS_INTERVAL = timedelta(minutes=10)
"""From one pass to the next; after a pass that took long, ten times as long as it took."""


class DeadLetterMaintenance:
    """Goes over the dead letters, every `DEAD_LETTER_PASS_INTERVAL` or less often."""

    def __init__(self, engine: Engine, owner: UUID) -> None:
        self._engine = engine
        self._owner = owner
        self._due = timedelta(0)

    async def run(self) -> None:
        """Go over all dead letters if it is time and no other process does. Raises: as
        `RowMaintenance.run`."""
        engine, began = self._engine, self._engine.clock.elapsed()
        if began < self._due:
            return
        undecodable = metrics.UNDECODABLE.labels(*engine.labels, "dead_letter")
        if not await engine.view.claim(CLAIM_ID, self._owner, DEAD_LETTER_PASS_INTERVAL):
            undecodable.set(0)  # the process that goes over them counts them
            self._due = began + DEAD_LETTER_PASS_INTERVAL
            return
        undecodable.set(await self._pass())
        now = engine.clock.elapsed()
        pause = max(DEAD_LETTER_PASS_INTERVAL, 10 * (now - began))
        await engine.view.claim(CLAIM_ID, self._owner, pause)
        self._due = now + pause

    async def _pass(self) -> int:
        """Maintain each dead letter; return how many cannot be decoded."""
        errors, undecodable = MailErrors(self._engine), 0
        async for dead_letter in self._engine.view.dead_letters():
            if not dead_letter.is_decoded:
                undecodable += 1
                continue
            with errors.of(dead_letter.enqueue_id):
                await self._maintain(dead_letter)
        errors.check()
        errors.end()
        return undecodable

    async def _maintain(self, dead_letter: DeadLetter) -> None:
        engine, entry = self._engine, dead_letter.entry
        if dead_letter.requeued_as is not None:
            await requeue_dead_letter(engine, dead_letter)
        elif self._is_over(dead_letter):
            await self._expire(dead_letter)
        elif entry is not None:
            limits = await engine.limits_cache.limits()
            if not limits.have_passed(entry.key.slice_start):
                mark = await engine.view.mark(entry.key)
                if mark is None or not dead_letters.is_rejected(mark):
                    await dead_letters.finish(engine, entry)

    def _is_over(self, dead_letter: DeadLetter) -> bool:
        """True if a dead letter is older than its lifetime. `died_at` may come from a wrong clock;
        an id is made only by a right one."""
        since = max(dead_letter.died_at, moment_of(dead_letter.enqueue_id))
        return self._engine.clock.now() - since > self._engine.dead_letter_lifetime

    async def _expire(self, dead_letter: DeadLetter) -> None:
        await self._engine.limits_cache.check_clock()
        if await discard_dead_letter(self._engine, dead_letter):
            metrics.EXPIRED.labels(*self._engine.labels).inc()
