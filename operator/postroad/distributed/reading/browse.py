"""Browse: rows joined with marks, slice by slice, oldest first, two pages per bucket in memory.

A mail that changes its entry while it is browsed could be missed (its old entry is seen replaced,
its new row came after its page was read): so an entry that was replaced just before the browse
began, or since, is followed to its successor. Source: 000 Decision (browse)."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.limits_cache import Beginning
from postroad.distributed.entries.dead_letters import SetAside, month_of, view_of
from postroad.distributed.entries.live_slices import live_slices, with_marks
from postroad.distributed.entries.replacement import replacement_of
from postroad.domain.delivery.events import ChangedMail
from postroad.domain.queues import entries
from postroad.domain.queues.documents import MailView
from postroad.domain.queues.selection import Pulse, Selector
from postroad.domain.values.identifiers import moment_of
from postroad.errors import InvalidInput, MailNotFound
from postroad.ports.view import View

ENQUEUE_ID = attrgetter("enqueue_id")


@dataclass(frozen=True, slots=True)
class WaitingMail:
    """A waiting mail. `row` is the entry that a change starts from; `entry` is how the mail waits:
    the same, or its successor while a replacement is under way. `place`: the id of the row that was
    read, where the mail was followed from there to another."""

    row: entries.Entry
    entry: entries.Entry
    mark: entries.Mark | None
    place: UUID | None = None

    def to_change(self) -> ChangedMail:
        """Return what events say of the mail."""
        entry = self.entry
        return ChangedMail(entry.enqueue_id, entry.mail_id, entry.envelope, entry.size_bytes)


async def waiting(
    engine: Engine,
    began: Beginning,
    selector: Selector | None = None,
    after: UUID | None = None,
    aside: SetAside | None = None,
    every: timedelta | None = None,
) -> AsyncIterator[WaitingMail]:
    """Yield the mails that wait when an operation begins, oldest entry first, and some that come
    meanwhile; after an id, only later rows; with `every` (`Selector.pulse`) some that are not
    selected. What cannot be decoded is set aside. Raises: ViewError, ConfigurationStale."""
    wanted, first = selector or Selector.all(), began.browse_start
    if wanted.is_empty or first is None:
        return
    bound, end = wanted.bounds
    after = max(filter(None, (after, bound)), default=None)
    if after is not None:
        first = max(first, min(moment_of(after), began.latest))
    latest = began.latest if end is None else min(began.latest, moment_of(end))
    ahead = _Ahead(began.latest)
    # The successor's row is in within the deadline: after an older replacement, that row is read
    # itself.
    since = began.at - engine.timing.deadline - engine.timing.apart
    aside = aside or SetAside(engine)
    pulse = Pulse(every, engine.clock.elapsed)
    async for live in live_slices(engine, first, latest):
        ahead.reach(live.start)
        async for row, mark in joined(engine.view, live.partitions, after):
            if end is not None and row.enqueue_id > end:
                break
            if ahead.meets(row.key):
                continue
            found: WaitingMail | None = None
            if isinstance(row, entries.UndecodableRow):
                await aside.row(row, mark)
            elif mark is not None and mark.is_unknown:
                aside.mark(row.key)
            else:
                try:
                    found = await _follow(engine, row, mark, since, ahead)
                except InvalidInput:  # the mark's change makes no valid envelope
                    aside.mark(row.key)
            if found is not None and (wanted.matches(found.entry, began.at) or pulse.is_due):
                yield found if found.row is row else replace(found, place=row.enqueue_id)
                pulse.note()
    aside.end()


class _Ahead:
    """The successors that a browse followed a replacement to before it met their rows. Holds only
    those that it can still meet, so memory stays bounded while mails keep changing."""

    def __init__(self, last: datetime) -> None:
        """`last`: the browse reads slices up to here."""
        self._last = last
        self._keys: set[entries.EntryKey] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def meets(self, key: entries.EntryKey) -> bool:
        """Return whether the browse followed a replacement to this entry before; true once."""
        if key not in self._keys:
            return False
        self._keys.remove(key)
        return True

    def __contains__(self, key: entries.EntryKey) -> bool:
        return key in self._keys

    def reach(self, slice_start: datetime) -> None:
        """Forget successors in earlier slices: their rows were missing when it was read."""
        if self._keys:
            self._keys = {key for key in self._keys if key.slice_start >= slice_start}

    def add(self, key: entries.EntryKey) -> None:
        if key.slice_start <= self._last:
            self._keys.add(key)


async def browse(engine: Engine, selector: Selector | None) -> AsyncIterator[MailView]:
    """Yield views of waiting mails; of rows that are set aside, behind the mail that is read next.
    See `MailQueue.browse`."""
    found: list[entries.UndecodableRow] = []
    began = await engine.limits_cache.begin()

    async def note(row: entries.UndecodableRow) -> None:
        if selector is None or selector.matches(row, began.at):
            found.append(row)

    aside = SetAside(engine, note)
    every = None if selector is None else selector.pulse
    async for each in waiting(engine, began, selector, aside=aside, every=every):
        while found:
            yield _unreadable(found.pop(0))
        if each.mark is None or await _waits_on(engine, each.entry):
            view = view_of(each.entry, engine.limits_cache.now())
            yield replace(view, place=each.place or each.row.enqueue_id)
    for row in found:
        yield _unreadable(row)


def _unreadable(row: entries.UndecodableRow) -> MailView:
    return MailView(
        enqueue_id=row.enqueue_id,
        mail_id=row.mail_id or row.enqueue_id,
        mail=row.envelope,
        accepted_at=row.accepted_at,
        enqueued_at=row.accepted_at,
        due_at=None,
        held=False,
        attempt=0,
        size_bytes=0,
        last_error=f"its row cannot be decoded: {row.reason}",
    )


async def content(engine: Engine, enqueue_id: UUID) -> AsyncIterator[bytes]:
    """Yield the content of a mail that waits, or of a dead letter. See `MailQueue.content`."""
    found: entries.Entry | None = None
    began = await engine.limits_cache.begin()
    async for each in waiting(engine, began, Selector(enqueue_id=enqueue_id)):
        found = each.entry
    if found is None:
        dead_letter = await engine.view.dead_letter(month_of(enqueue_id), enqueue_id)
        if dead_letter is not None and dead_letter.entry is None:
            yield dead_letter.body or b""
            return
        found = None if dead_letter is None else dead_letter.entry
    if found is None:
        raise MailNotFound
    async for chunk in engine.blobs.stream(found.blob_key):
        yield chunk


async def _waits_on(engine: Engine, successor: entries.Entry) -> bool:
    """True if the successor of a replacement under way is not over: its message may come before the
    predecessor's mark is `published`, which a process that ended never writes."""
    mark = await engine.view.mark(successor.key)
    return mark is None or mark.is_live


async def joined(
    view: View, partitions: list[entries.Partition], after: UUID | None
) -> AsyncGenerator[tuple[entries.Entry | entries.UndecodableRow, entries.Mark | None], None]:
    """Yield the rows of a slice with their marks, merged over its buckets in the order of ids."""
    streams = [
        with_marks(view, each, view.rows(each, after), ENQUEUE_ID, after) for each in partitions
    ]
    firsts = await asyncio.gather(*(anext(each, None) for each in streams))
    heads = [
        (first[0].enqueue_id.int, number, first)
        for number, first in enumerate(firsts)
        if first is not None
    ]
    heapq.heapify(heads)
    while heads:
        _, number, head = heads[0]
        yield head
        following = await anext(streams[number], None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following[0].enqueue_id.int, number, following))


async def as_it_waits(engine: Engine, row: entries.Entry) -> WaitingMail | None:
    """Return how the mail of a row waits, perhaps under a successor; None: it does not."""
    mark, always = await engine.view.mark(row.key), datetime.min.replace(tzinfo=UTC)
    if mark is not None and mark.is_unknown:
        return None
    try:
        return await _follow(engine, row, mark, always, _Ahead(row.accepted_at))
    except InvalidInput:  # the mark's change makes no valid envelope
        return None


async def _follow(
    engine: Engine, row: entries.Entry, mark: entries.Mark | None, since: datetime, ahead: _Ahead
) -> WaitingMail | None:
    """Return how the mail of a row waits; None: not, or its successor's row is met later."""
    if mark is None:
        return WaitingMail(row, row, None)
    if mark.is_live:
        successor, change = replacement_of(mark)
        ahead.add(successor)
        return WaitingMail(row, row.with_change(successor, change), mark)
    ending = mark.ending
    if (
        mark.delivered_at is not None
        or ending is None
        or ending.kind is not entries.EndingKind.REPLACED
        or ending.at < since
    ):
        return None
    successor, change = replacement_of(mark)
    if successor in ahead:
        return None
    ahead.add(successor)
    after = await engine.view.mark(successor)
    return await _follow(engine, row.with_change(successor, change), after, since, ahead)
