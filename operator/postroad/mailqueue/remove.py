"""Remove: a mark that wins, then the bytes. The message finds the mark when it comes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

from postroad.domain.selectors import Selector
from postroad.domain.slices import Partition, TurnKey
from postroad.domain.turns import Ending, EndingKind, Mark, Traits, Turn
from postroad.mailqueue.browse import Waiting, waiting
from postroad.mailqueue.bulk import count
from postroad.mailqueue.endings import delete_bytes, end
from postroad.mailqueue.engine import Engine
from postroad.mailqueue.protocol import (
    hand_down_delivery,
    insert_successor,
    replacement_of,
)

TOGETHER = 100
"""Mails of one partition that one lightweight transaction ends."""

MOST_DOMAINS = 20
"""Of a mail that shares a transaction with others: its mark repeats them all."""


async def remove(engine: Engine, selector: Selector) -> int:
    """Remove the selected mails that wait now; return how many. Raises: InvalidInput, ViewError."""
    selector.require_purpose()
    engine.check_open()
    return await remove_after(engine, None, selector, engine.clock.now())


async def remove_after(
    engine: Engine, after: UUID | None, selector: Selector, accepted_by: datetime
) -> int:
    """Remove the selected mails with a turn after an id, if they were accepted by a moment of this
    process' clock (by a tolerated clock it may have been later); return how many.
    Raises: ViewError."""
    latest = accepted_by + engine.timing.apart
    found = (
        each async for each in waiting(engine, selector, after) if each.turn.accepted_at <= latest
    )
    # Transactions on one partition would only get into each other's way.
    locks: defaultdict[Partition, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def together(batch: list[Waiting]) -> int:
        return await _remove_together(engine, batch, locks[batch[0].row.key.partition])

    return await count(_by_partition(found), together)


async def _by_partition(found: AsyncIterator[Waiting]) -> AsyncIterator[list[Waiting]]:
    """Gather mails by the partition of their rows; one that is changing its turn, or
    is large, stays alone."""
    gathered: dict[Partition, list[Waiting]] = {}
    async for each in found:
        partition = each.row.key.partition
        if any(other.slice_start != partition.slice_start for other in gathered):
            for batch in gathered.values():
                yield batch
            gathered = {}
        if each.mark is not None or len(each.row.traits.domains) > MOST_DOMAINS:
            yield [each]
            continue
        gathered.setdefault(partition, []).append(each)
        if len(gathered[partition]) == TOGETHER:
            yield gathered.pop(partition)
    for batch in gathered.values():
        yield batch


async def _remove_together(engine: Engine, batch: list[Waiting], lock: asyncio.Lock) -> int:
    """Remove waiting mails of one partition. If one of them ended meanwhile, none was ended by the
    transaction: it is looked for by halves. Before browse start all are looked at one by one."""
    if len(batch) == 1:
        async with lock:
            return await remove_turn(engine, batch[0].row, batch[0].mark)
    ending = Ending(EndingKind.REMOVED, engine.clock.now())
    ended = [(each.row.key, ending, each.row.traits) for each in batch]
    async with lock:
        were_ended = await _end_together(engine, ended)
    if were_ended:
        await delete_bytes(engine, [each.row.blob_key for each in batch])
        for _ in batch:
            engine.on_ending()
        return len(batch)
    middle = len(batch) // 2
    first = await _remove_together(engine, batch[:middle], lock)
    return first + await _remove_together(engine, batch[middle:], lock)


async def _end_together(engine: Engine, ended: list[tuple[TurnKey, Ending, Traits]]) -> bool:
    """End turns of one partition. As `endings.end`: after a suspension nothing follows from it in a
    slice that was passed meanwhile."""
    slice_start = ended[0][0].slice_start
    fix = await engine.bearings.fix()
    if fix.limits.have_passed(slice_start) or not await engine.view.end_together(ended):
        return False
    return engine.bearings.is_good(fix) or not (await engine.bearings.refresh()).have_passed(
        slice_start
    )


async def remove_turn(engine: Engine, turn: Turn, mark: Mark | None = None) -> bool:
    """Remove a mail, starting from one of its turns; go on to its successors if it has some.

    Returns whether it is removed by this call; False when it ended before.
    """
    if mark is None:
        ending = Ending(EndingKind.REMOVED, engine.clock.now())
        mark = await end(engine, turn, ending)
        if mark is None:
            await delete_bytes(engine, [turn.blob_key])
            engine.on_ending()
            return True
    if mark.ending is None or mark.ending.kind is not EndingKind.REPLACED:
        return False
    if mark.delivered_at is not None:
        await hand_down_delivery(engine, turn, mark)
        return False
    successor, change = replacement_of(mark)
    new = turn.with_change(successor, change)
    # Its row comes first, so that the mark that ends it is not without one. No message is
    # needed any more: the replacement is finished by its successor's end.
    may_wait = mark.published or await insert_successor(engine, new)
    removed = may_wait and await remove_turn(engine, new)
    if not mark.published and not await engine.view.mark_published(turn.key, successor.enqueue_id):
        return await remove_turn(engine, turn, await engine.view.mark(turn.key)) or removed
    return removed
