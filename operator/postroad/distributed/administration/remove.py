"""Remove: a mark, unless another ending was first, then the bytes. The message meets the mark."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.limits_cache import Beginning
from postroad.distributed.engine.timing import TRIES, count, persist
from postroad.distributed.entries import replacement
from postroad.distributed.entries.dead_letters import SetAside
from postroad.distributed.entries.endings import came_too_late, delete_bytes, end, was_cleaned
from postroad.distributed.reading.browse import WaitingMail, waiting
from postroad.domain.queues import entries
from postroad.domain.queues.selection import Selector
from postroad.errors import ViewUnavailable
from postroad.event_log.operations import OperationEvents
from postroad.ports.mail_queue import Operation

TOGETHER = 100
"""Mails of one partition that one lightweight transaction ends."""

MAX_DOMAINS = 20
"""Of a mail that shares a transaction with others: its mark repeats them all."""


@dataclass(slots=True)
class _Removal:
    """One removal of some mails. A mark with an equal ending is its own only once a reply was lost;
    before that, another process removed the mail in the same millisecond."""

    ending: entries.Ending
    is_unsure: bool = False

    @classmethod
    def now(cls, engine: Engine) -> _Removal:
        return cls(entries.Ending(entries.EndingKind.REMOVED, engine.clock.now()))

    async def persist(self, engine: Engine, work: Callable[[], Awaitable[bool]]) -> bool:
        """Do work that ends entries by this removal; repeat it where the view does not answer in
        time. Raises: as `backoff.persist`."""

        async def tried() -> bool:
            try:
                return await work()
            except ViewUnavailable:
                self.is_unsure = True
                raise

        return await persist(engine.backoff(), TRIES, tried)

    def made(self, mark: entries.Mark) -> bool:
        """Return whether this removal may have written a mark that is there."""
        return self.is_unsure and mark.ending == self.ending


async def remove(engine: Engine, selector: Selector) -> int:
    """Remove the selected mails that wait now; return how many. Raises: InvalidInput, ViewError."""
    selector.require_purpose()
    engine.check_open()
    began = await engine.limits_cache.begin()
    events = await engine.events(Operation.REMOVE)
    return await remove_after(engine, began, None, selector, began.latest, events)


async def remove_after(
    engine: Engine,
    began: Beginning,
    after: UUID | None,
    selector: Selector,
    accepted_by: datetime,
    events: OperationEvents | None = None,
) -> int:
    """Remove the selected mails with an entry after an id that wait when an operation begins, if
    they were accepted by a moment; return how many. Raises: ViewError."""
    undecodable = 0

    async def end_undecodable(row: entries.UndecodableRow) -> None:
        """End a row that is set aside; its bytes are left to its message, or to the audit."""
        nonlocal undecodable
        if selector.matches(row, began.at) and row.accepted_at <= accepted_by:
            undecodable += await end(engine, row, _Removal.now(engine).ending) is None

    aside = SetAside(engine, end_undecodable)
    found = (
        each
        async for each in waiting(engine, began, selector, after, aside)
        if each.entry.accepted_at <= accepted_by
    )
    if events is not None:
        found = events.over(found, WaitingMail.to_change)
    # Concurrent transactions on one partition would only fail each other.
    locks: defaultdict[entries.Partition, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def together(batch: list[WaitingMail]) -> int:
        removal = _Removal.now(engine)
        return await _remove_together(engine, batch, removal, locks[batch[0].row.key.partition])

    return await count(_by_partition(found), together) + undecodable


async def _by_partition(found: AsyncIterator[WaitingMail]) -> AsyncIterator[list[WaitingMail]]:
    """Batch mails by the partition of their rows; one that is changing its entry, or has many
    domains, comes alone."""
    gathered: dict[entries.Partition, list[WaitingMail]] = {}
    async for each in found:
        partition = each.row.key.partition
        if any(other.slice_start != partition.slice_start for other in gathered):
            for batch in gathered.values():
                yield batch
            gathered = {}
        if each.mark is not None or len(each.row.traits.domains) > MAX_DOMAINS:
            yield [each]
            continue
        gathered.setdefault(partition, []).append(each)
        if len(gathered[partition]) == TOGETHER:
            yield gathered.pop(partition)
    for batch in gathered.values():
        yield batch


async def _remove_together(
    engine: Engine, batch: list[WaitingMail], removal: _Removal, lock: asyncio.Lock
) -> int:
    """Remove waiting mails of one partition. If one of them ended meanwhile, the transaction ended
    none, and each half is tried alone. Before browse start, or where the transaction's reply was
    lost, the halves end at single mails, each of which is checked."""
    if len(batch) == 1:
        work = partial(remove_entry, engine, batch[0].row, batch[0].mark, removal)
        async with lock:
            return await removal.persist(engine, work)
    ended = [(each.row.key, removal.ending, each.row.traits) for each in batch]
    async with lock:
        were_ended = await removal.persist(engine, partial(_end_together, engine, ended))
    if were_ended:
        await delete_bytes(engine, [each.row.blob_key for each in batch])
        for _ in batch:
            engine.on_ending()
        return len(batch)
    middle = len(batch) // 2
    first = await _remove_together(engine, batch[:middle], removal, lock)
    return first + await _remove_together(engine, batch[middle:], removal, lock)


async def _end_together(
    engine: Engine, ended: list[tuple[entries.EntryKey, entries.Ending, entries.Traits]]
) -> bool:
    """End entries of one partition; as in `endings.end`, nothing follows in a passed slice."""
    slice_start = ended[0][0].slice_start
    if (await engine.limits_cache.limits()).have_passed(slice_start):
        return False
    if not await engine.view.end_together(ended):
        return False
    return not (await engine.view.limits()).have_passed(slice_start)


async def remove_entry(
    engine: Engine,
    entry: entries.Entry,
    mark: entries.Mark | None = None,
    removal: _Removal | None = None,
) -> bool:
    """Remove a mail, starting from one of its entries, through its successors. Returns whether this
    call removed it; False when it ended before."""
    removal = removal or _Removal.now(engine)
    if mark is None:
        mark = await end(engine, entry, removal.ending)
        # A mark of this removal whose reply was lost counts as one whose reply came.
        if mark is None or (removal.made(mark) and not await came_too_late(engine, entry.key)):
            await delete_bytes(engine, [entry.blob_key])
            engine.on_ending()
            return True
    if mark.ending is None or mark.ending.kind is not entries.EndingKind.REPLACED:
        return False
    successor, change = replacement.replacement_of(mark)
    if not mark.published:
        await replacement.withdraw_given_up(engine, entry, change)
    if mark.delivered_at is not None:
        await replacement.propagate_delivery(engine, entry, mark)
        return False
    new = entry.with_change(successor, change)
    if mark.published:
        return await remove_entry(engine, new, removal=removal)
    if await was_cleaned(engine, entry.key):
        return False
    # Insert the row first: a mark that ends the successor must not be without a row (size subtracts
    # marks from rows).
    if not await replacement.insert_successor(engine, new):
        # With `published`, this mark would end late mail: as in `finish`, it needs a fresh
        # successor.
        await replacement.choose_successor_anew(engine, entry, successor, change)
        return await remove_entry(engine, entry, await engine.view.mark(entry.key), removal)
    # The successor's end finishes the replacement; no message is needed.
    removed = await remove_entry(engine, new, removal=removal)
    if not await engine.view.mark_published(entry.key, successor.enqueue_id):
        return (
            await remove_entry(engine, entry, await engine.view.mark(entry.key), removal) or removed
        )
    return removed
