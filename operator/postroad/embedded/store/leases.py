"""The records of a leased entry, from its START to its end.

The order of the lines is the argument of FORMAT.md 8 for R1 and R3: what is durable before a record
refers to it, which record a caller waits for, and behind which one a slot is released. `items.py`
calls these.
Source: LQ-4, LQ-5, LQ-7, LQ-11, LQ-12, LQ-28..30."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.queues.documents import outcomes_json
from postroad.domain.values.text import to_json
from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.lanes import Written
from postroad.embedded.log.layout import NEW
from postroad.embedded.log.records import (
    DeliveryKind,
    DeliveryRecord,
    FinishKind,
    FinishRecord,
    HoldRecord,
    OutcomesRecord,
    StartRecord,
)
from postroad.embedded.log.segments import ENDED, LEASED, PARKED, LiveEntry
from postroad.embedded.log.spool_files import Kept
from postroad.embedded.store.engine import Engine
from postroad.errors import PostroadError
from postroad.telemetry.logs import logger

log = logger("embedded")


async def lease(engine: Engine) -> tuple[LiveEntry, EnvelopeRecord, Kept | None]:
    """Wait for the next due entry, and append its START (LQ-11, step 1 and 2). Returns the content
    and its shape too, where they are still in memory.
    Raises: QueueClosed, StoreFailed, StoreDamaged."""
    await engine.deliverable.wait()
    while True:
        engine.check()
        entry = engine.ready_queues.take(engine.elapsed())
        if entry is None:
            await engine.wakeups.wait(engine.ready_queues.next_due())
            continue
        entry.state = LEASED
        cached = engine.content_cache.take(entry)
        if cached is not None:  # durable: `_admit` caches a mail only then
            start(engine, entry, cached[0])
            return entry, *cached
        try:
            await engine.wait_durable(entry)  # R1: a cut would leave a START that names no ENVELOPE
            record = await engine.reader.read(entry)
        except asyncio.CancelledError:
            if entry.state is LEASED:
                engine.ready_queues.give_back(entry)
                engine.wakeups.wake_one()  # else it lies there until the next mail comes
            raise
        except PostroadError as error:
            if entry.state is ENDED:
                continue  # it was removed during the read, and a checkpoint removed its segment
            engine.stop(error)
            raise
        if record.unreadable is not None:
            _park(entry, record)
        elif entry.state is LEASED:  # else it was removed or replaced during the waits
            start(engine, entry, record)
            return entry, record, None


def _park(entry: LiveEntry, record: EnvelopeRecord) -> None:
    """Set a mail aside whose record cannot be read: it waits for an administrator."""
    if entry.state is LEASED:
        entry.state = PARKED
    log.error("a mail is set aside: its record cannot be read", error=record.error)


def start(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> None:
    """Append the START of an entry, whose ENVELOPE is durable (R1).
    Raises: QueueClosed, StoreFailed."""
    lane = entry.segment.lane
    started = StartRecord(record.mail_id, record.entry_number, lane, entry.position)
    # In one step: a checkpoint between these lines would flag the ENVELOPE as garbage, and let
    # recovery begin behind the START: the mail is lost.
    entry.start = engine.append(NEW, started).position
    entry.segment.garbage.add(entry.ordinal)
    engine.working[entry] = None


RecipientsByOutcome = Mapping[tuple[DeliveryKind, str], Sequence[int]]
"""The numbers of the recipients by what they share: the kind and the text of their outcome."""


async def deliver(engine: Engine, record: EnvelopeRecord, by_outcome: RecipientsByOutcome) -> None:
    """Record the outcomes of recipients, all of them by one sync. Durable when it returns, unless
    they were deferred. Raises: QueueClosed, StoreFailed, StoreFull."""
    last = 0
    for (kind, text), numbers in by_outcome.items():
        delivery = DeliveryRecord(record.mail_id, record.entry_number, kind, tuple(numbers), text)
        written = engine.append(NEW, delivery)
        if kind is not DeliveryKind.DEFERRED:
            last = written.end
    if last:  # else a kill at any later time would send to these once more
        await _commit_delivery(engine, last)


def keep(engine: Engine, record: EnvelopeRecord, outcomes: AttemptOutcomes | None) -> None:
    """Append when an entry ends, which is about to, and what is kept of the attempt. Not durable.
    Raises: QueueClosed, StoreFailed."""
    now = engine.now_us()
    document = to_json({"at": now}) if outcomes is None else outcomes_json(outcomes, now)
    engine.append(NEW, OutcomesRecord(record.mail_id, record.entry_number, document))


async def finish(
    engine: Engine, entry: LiveEntry, record: EnvelopeRecord, left: tuple[int, ...]
) -> None:
    """End an entry whose last recipients were delivered. With none left to record it does not wait
    for a sync, because recovery derives the FINISH from the DELIVERYs (LQ-28).
    Raises: QueueClosed, StoreFailed, StoreFull."""
    if not left:
        return end(engine, entry, record)
    delivered = DeliveryRecord(
        record.mail_id, record.entry_number, DeliveryKind.DELIVERED, left, ""
    )
    written = engine.append(NEW, delivered)
    # Before the wait: an administrator who removes the mail during it would end the entry twice.
    end(engine, entry, record)
    await _commit_delivery(engine, written.end)
    return None


async def _commit_delivery(engine: Engine, where: int) -> None:
    """Wait for the sync of an outcome. While mail arrives, delay it by up to `sync_wait`, to share
    that of the next ENVELOPE, because a client waits for its 250 (the reverse of LQ-29)."""
    lane = engine.lanes[NEW]
    is_busy = engine.arrival_rate.is_busy(lane.loop.time())
    await lane.commit(where, engine.sync_wait * is_busy)


def end(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> None:
    """End an entry whose recipients all have DELIVERYs. Not durable.
    Raises: QueueClosed, StoreFailed."""
    written = _append_finish(engine, entry, record, FinishKind.DONE)
    engine.remove_entry(entry)
    _release_behind(engine, written.end, entry.slot)


def _append_finish(
    engine: Engine, entry: LiveEntry, record: EnvelopeRecord, kind: FinishKind
) -> Written:
    lane, position = entry.segment.lane, entry.position
    return engine.append(
        NEW, FinishRecord(record.mail_id, record.entry_number, lane, position, kind)
    )


def _release_behind(engine: Engine, where: int, slot: int) -> None:
    """Release a mail's slot when its FINISH, which ends at `where`, is durable (R3)."""
    # Not at once: a cut without the FINISH leaves a dead letter where a recipient failed, and its
    # file would have another mail.
    engine.lanes[NEW].when_durable(where, partial(engine.slots.release, slot))


def remove(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> Written:
    """Append the FINISH of a mail that an administrator removed, and drop its entry. Its ENVELOPE
    must be durable (R1). Not durable. Raises: QueueClosed, StoreFailed."""
    keep(engine, record, None)
    written = _append_finish(engine, entry, record, FinishKind.REMOVED)
    if entry in engine.working:  # its consumer reads the file, which another mail would overwrite
        engine.orphans[entry] = written.end
    else:
        _release_behind(engine, written.end, entry.slot)
    engine.remove_entry(entry)  # last: it takes the entry from `working`
    return written


def release_orphan(engine: Engine, entry: LiveEntry) -> None:
    """Release the slot of a mail that was removed while this entry was leased."""
    if (where := engine.orphans.pop(entry, None)) is not None:
        _release_behind(engine, where, entry.slot)


def set_held(engine: Engine, entry: LiveEntry, record: EnvelopeRecord, held: bool) -> Written:
    """Append a HOLD: a retry of this working entry holds its mail, or no longer.
    Raises: QueueClosed, StoreFailed."""
    engine.index.set_held(entry, held)
    return engine.append(NEW, HoldRecord(record.mail_id, record.entry_number, held))
