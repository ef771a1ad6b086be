"""An entry in a consumer's hands, from its START to its end.

The order of the lines in here is the argument of FORMAT.md 8 for R1 and R3: what is durable before
a record refers to it, which record is waited for and which is not, and behind which one a slot is
given away. `items.py` says when each of these is called.
Source: LQ-4, LQ-5, LQ-7, LQ-11, LQ-12, LQ-28..30.
"""

from __future__ import annotations

import asyncio
from functools import partial

from postroad.embedded.engine import Engine
from postroad.embedded.envelopes import Unreadable
from postroad.embedded.lanes import Written
from postroad.embedded.layout import NEW
from postroad.embedded.records import Delivery, EnvelopeRecord, Finish, Finished, Hold, Kind, Start
from postroad.embedded.segments import Entry, State
from postroad.embedded.spool_files import Kept
from postroad.errors import PostroadError
from postroad.telemetry.logs import logger

log = logger("embedded")


async def lease(engine: Engine) -> tuple[Entry, EnvelopeRecord, Kept | None]:
    """Wait for the next entry that is due, and start it (LQ-11, step 1 and 2). The last is the
    content with its shape, where that is still in memory.
    Raises: QueueClosed, StoreFailed, StoreDamaged."""
    await engine.deliverable.wait()
    while True:
        engine.check()
        entry = engine.ready_queues.take(engine.elapsed())
        if entry is None:
            await engine.wakeups.wait(engine.ready_queues.next_due())
            continue
        entry.state = State.LEASED
        if (
            cached := engine.content_cache.take(entry)
        ) is not None:  # durable, or it would not be here
            start(engine, entry, cached[0])
            return entry, *cached
        try:
            await engine.wait_durable(entry)
            record = await engine.reader.read(entry)
        except asyncio.CancelledError:
            if entry.state is State.LEASED:
                engine.ready_queues.give_back(entry)
                engine.wakeups.wake_one()
            raise
        except Unreadable as error:
            _park(entry, error)
            continue
        except PostroadError as error:
            engine.stop(error)
            raise
        if entry.state is State.LEASED:
            start(engine, entry, record)
            return entry, record, None


def _park(entry: Entry, error: Unreadable) -> None:
    """Attempt a mail no more whose record cannot be read. It stays in the queue, and others go on:
    a store that stopped here would forget what those on the wire have come to."""
    if entry.state is State.LEASED:
        entry.state = State.PARKED
    log.error("a mail cannot be attempted", error=error.explain())


def start(engine: Engine, entry: Entry, record: EnvelopeRecord) -> None:
    """Append the START of an entry, whose ENVELOPE is durable (R1).
    Raises: QueueClosed, StoreFailed."""
    lane = entry.segment.lane
    started = Start(record.mail_id, record.entry_number, lane, entry.position)
    entry.start = engine.append(NEW, started).position
    entry.segment.garbage.add(entry.ordinal)
    engine.working[entry] = None


async def deliver(
    engine: Engine, record: EnvelopeRecord, kind: Kind, numbers: tuple[int, ...], text: str
) -> None:
    """Record what became of recipients. Durable when it returns, unless they were deferred.
    Raises: QueueClosed, StoreFailed, StoreFull."""
    delivery = Delivery(record.mail_id, record.entry_number, kind, numbers, text)
    written = engine.append(NEW, delivery)
    if kind is not Kind.DEFERRED:
        await _commit_delivery(engine, written.end)


async def finish(
    engine: Engine, entry: Entry, record: EnvelopeRecord, left: tuple[int, ...]
) -> None:
    """End an entry whose last recipients were delivered. With nobody left to record, no sync is
    waited for: the DELIVERYs say the same as the FINISH (LQ-28).
    Raises: QueueClosed, StoreFailed, StoreFull."""
    if not left:
        return end(engine, entry, record)
    delivered = Delivery(record.mail_id, record.entry_number, Kind.DELIVERED, left, "")
    written = engine.append(NEW, delivered)
    end(engine, entry, record)
    await _commit_delivery(engine, written.end)
    return None


async def _commit_delivery(engine: Engine, where: int) -> None:
    """Wait for the sync of what became of a mail. A client that waits for its 250 goes first:
    while mail comes in, this sync rides on that of the next ENVELOPE (LQ-29, turned round)."""
    is_busy = engine.arrival_rate.is_busy(asyncio.get_running_loop().time())
    await engine.lanes[NEW].commit(where, engine.sync_wait * is_busy)


def end(engine: Engine, entry: Entry, record: EnvelopeRecord) -> None:
    """End an entry whose recipients all have DELIVERYs. Not durable. The slot waits for the FINISH:
    without it, recovery makes a dead letter of a mail that failed for somebody.
    Raises: QueueClosed, StoreFailed."""
    written = _append_finish(engine, entry, record, Finished.DONE)
    engine.remove_entry(entry)
    _release_behind(engine, written.end, entry.slot)


def _append_finish(engine: Engine, entry: Entry, record: EnvelopeRecord, kind: Finished) -> Written:
    lane, position = entry.segment.lane, entry.position
    return engine.append(NEW, Finish(record.mail_id, record.entry_number, lane, position, kind))


def _release_behind(engine: Engine, where: int, slot: int) -> None:
    """Give a mail's slot away once its FINISH, which ends there, is durable (R3)."""
    engine.lanes[NEW].when_durable(where, partial(engine.slots.release, slot))


def remove(engine: Engine, entry: Entry, record: EnvelopeRecord) -> Written:
    """Append the end of a mail that somebody removed, and drop its entry. Its ENVELOPE must be
    durable (R1). Not durable; the slot stays with whoever is working on the mail.
    Raises: QueueClosed, StoreFailed."""
    written = _append_finish(engine, entry, record, Finished.REMOVED)
    if entry in engine.working:
        engine.orphans[entry] = written.end
    else:
        _release_behind(engine, written.end, entry.slot)
    engine.remove_entry(entry)
    return written


def release_orphan(engine: Engine, entry: Entry) -> None:
    """Give back the slot of a mail that was removed while somebody worked on it."""
    if (where := engine.orphans.pop(entry, None)) is not None:
        _release_behind(engine, where, entry.slot)


def set_held(engine: Engine, entry: Entry, record: EnvelopeRecord, held: bool) -> Written:
    """Ask for an entry that is being worked on to be held, or not, when it comes back.
    Raises: QueueClosed, StoreFailed."""
    engine.index.set_held(entry, held)
    return engine.append(NEW, Hold(record.mail_id, record.entry_number, held))
