"""Operations of administrators on mails that wait: look at them, remove them, hold, release, flush,
expire; and to dead letters: list, requeue, discard them.

Every change is a record per mail and one sync for all. A mail that gets another entry meanwhile is
followed to it; one that a consumer has is removed or held as far as that is still possible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from postroad.domain.delivery.events import ChangedMail
from postroad.domain.mail.mail import domain_of
from postroad.domain.queues.documents import MailView
from postroad.domain.queues.selection import Candidate, Pulse, Selector
from postroad.domain.values.instants import duration_us, instant
from postroad.embedded.log.envelopes import MAX_DOMAINS, EnvelopeRecord
from postroad.embedded.log.index import latest
from postroad.embedded.log.lanes import Written
from postroad.embedded.log.layout import DEAD, HELD, Lane
from postroad.embedded.log.segments import LiveEntry, State
from postroad.embedded.store import leases
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.recovery import as_dead_letter
from postroad.embedded.store.spool_reading import in_chunks
from postroad.errors import MailNotFound, PostroadError
from postroad.event_log.operations import OperationEvents
from postroad.ports.mail_queue import EXPIRED, Operation

YIELD_EVERY = 200
"""Entries between two yields to the event loop."""

FEW_DOMAINS = MAX_DOMAINS // 8
"""Characters of domains that the index has whole, however many bytes each has."""


Selected = tuple[LiveEntry, EnvelopeRecord]

EntryStep = Callable[[Engine, LiveEntry, EnvelopeRecord], Written | LiveEntry | None]
"""Changes one mail and returns what has to become durable; None when there was nothing to do."""


async def select(
    engine: Engine, selector: Selector, *, dead: bool = False, every: timedelta | None = None
) -> AsyncIterator[Selected]:
    """Yield the entries that are selected, oldest first, and with `every` (`Selector.pulse`) some
    others; what stands for a mail that is set aside is selected by its ids and times alone. Raises:
    StoreDamaged."""
    await engine.indexed.wait()
    engine.check()
    now = engine.clock.now()
    after, last = selector.bounds
    walk = engine.index.walk(
        dead=dead,
        after=b"" if after is None else after.bytes,
        last=None if last is None else last.bytes,
    )
    pulse = Pulse(every, engine.clock.elapsed)
    for count, entry in enumerate(walk):
        is_sign = False
        if count % YIELD_EVERY == YIELD_EVERY - 1:
            await asyncio.sleep(0)
            is_sign = pulse.is_due
        if not (is_sign or _may_match(selector, entry, now)):
            continue
        found = await _read(engine, entry, dead)
        if found is not None and (is_sign or _matches(selector, found[1], now)):
            yield found
            pulse.note()


async def _read(
    engine: Engine, entry: LiveEntry, dead: bool
) -> tuple[LiveEntry, EnvelopeRecord] | None:
    """Return a mail's entry as it is now: one that was replaced while it was read is followed. None
    when the mail has ended, or is among the dead letters (or no longer). Raises: StoreDamaged."""
    current = latest(entry)
    while current is not None and (current.segment.lane == DEAD) is dead:
        try:
            record = await engine.reader.read(current)
        except PostroadError:
            if current.state is not State.ENDED:
                raise
        if current.state is not State.ENDED:
            return current, record
        current = latest(current)
    return None


def _may_match(selector: Selector, entry: LiveEntry, now: datetime) -> bool:
    """True if it is worth reading the entry's record. The index has no senders: where each mail has
    its own, they would take a tenth of its memory."""
    wanted_id, age = selector.enqueue_id, selector.older_than
    return (
        (wanted_id is None or wanted_id.bytes == entry.enqueue_id)
        and (age is None or now - instant(entry.accepted_us) > age)
        and _may_be_for(selector, entry.domains)
    )


def _may_be_for(selector: Selector, domains: str) -> bool:
    """True if a mail to these domains may be selected. Of very many the index lacks the last ones,
    and always that of the bare `postmaster`, which is the empty string."""
    if len(domains) >= FEW_DOMAINS:
        return True
    found, several = domains.split(), selector.domains
    wanted = [] if selector.domain is None else [selector.domain.lower()]
    if selector.recipient is not None:
        wanted.append(domain_of(selector.recipient))
    return all(not each or each in found for each in wanted) and (
        several is None or "" in several or not several.isdisjoint(found)
    )


async def content(engine: Engine, enqueue_id: UUID) -> AsyncIterator[bytes]:
    """Yield the content of a mail that waits, or of a dead letter. Raises: MailNotFound,
    BlobMissing, StoreDamaged."""
    for dead in (False, True):
        async for _, record in select(engine, Selector(enqueue_id=enqueue_id), dead=dead):
            async with aclosing(in_chunks(engine, record)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
    raise MailNotFound


def _matches(selector: Selector, record: EnvelopeRecord, now: datetime) -> bool:
    candidate = Candidate(
        UUID(bytes=record.enqueue_id), record.envelope, instant(record.accepted_us)
    )
    return selector.matches(candidate, now)


async def change(
    engine: Engine,
    operation: Operation,
    selector: Selector,
    events: OperationEvents | None = None,
) -> int:
    """Do an operation to every selected mail; return how many were changed, durably. Raises:
    InvalidInput for an empty selector, StoreFailed, StoreFull, StoreDamaged."""
    selector.require_purpose()
    dead = operation.of_dead_letters
    found = select(engine, selector, dead=dead)
    if events is not None:
        found = events.over(found, partial(_to_change, engine, operation))
    return await _change(engine, OPERATIONS[operation], found, dead=dead)


def _to_change(engine: Engine, operation: Operation, selected: Selected) -> ChangedMail | None:
    """Return what events say of a mail; None: the operation will not change it."""
    entry, record = selected
    is_held = entry.held_next or entry.segment.lane == HELD
    is_in_flight = operation is Operation.EXPIRE and entry in engine.working
    if is_in_flight or entry.state is State.ENDED or (operation is Operation.HOLD and is_held):
        return None
    ids = UUID(bytes=record.enqueue_id), UUID(bytes=record.mail_id)
    return ChangedMail(*ids, record.envelope, record.size_bytes)


async def _change(
    engine: Engine, apply: EntryStep, selection: AsyncIterator[Selected], *, dead: bool
) -> int:
    changed = 0
    ends: dict[Lane, int] = {}
    try:
        async for selected in selection:
            found = await _wait_durable(engine, *selected, dead)
            # No `await` since its state was looked at: a retry would bring back what is removed.
            done = None if found is None else apply(engine, *found)
            if done is None:
                continue
            changed += 1
            end = done.end if isinstance(done, Written) else done.position + 1
            ends[done.segment.lane] = max(end, ends.get(done.segment.lane, 0))
    finally:  # behind an error, too: a cut would undo what a second call finds changed
        for lane, end in ends.items():
            await engine.lanes[lane].commit(end)
    return changed


async def _wait_durable(
    engine: Engine, entry: LiveEntry, record: EnvelopeRecord, dead: bool
) -> tuple[LiveEntry, EnvelopeRecord] | None:
    """Wait until an entry is durable, so that it can be changed (R1); the same for the one that
    replaces it meanwhile."""
    found: tuple[LiveEntry, EnvelopeRecord] | None = (entry, record)
    while found is not None:
        await engine.wait_durable(found[0])
        if found[0].state is not State.ENDED:  # during the wait, a retry may have replaced it
            return found
        found = await _read(engine, found[0], dead)
    return None


async def discard_old_dead_letters(engine: Engine) -> int:
    """Discard the dead letters whose lifetime is over; return how many, durably. Raises: as
    `change`."""
    lifetime = engine.options.dead_letter_lifetime
    died_before = engine.now_us() - duration_us(lifetime)

    def discard(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> Written | None:
        is_over = max(record.due_us, record.enqueued_us) < died_before
        return leases.remove(engine, entry, record) if is_over else None

    # A dead letter is older than its mail, so the index alone passes over those of younger mails.
    old = select(engine, Selector(older_than=lifetime), dead=True)
    return await _change(engine, discard, old, dead=True)


def remove(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> Written:
    """End a mail for good."""
    return leases.remove(engine, entry, record)


def flush(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> LiveEntry | None:
    """Make a delayed mail due."""
    is_delayed = entry.state is State.DELAYED or (
        entry.state is State.PARKED and record.due_us > engine.now_us()
    )
    if not is_delayed:
        return None
    return engine.replace_entry(entry, engine.new_entry(record._replace(due_us=0)))


def hold(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> LiveEntry | Written | None:
    """Keep a mail back."""
    if entry.held_next or entry.segment.lane == HELD:
        return None
    if entry in engine.working:
        return leases.set_held(engine, entry, record, held=True)
    return engine.replace_entry(entry, engine.new_entry(record._replace(held=True)))


def release(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> LiveEntry | Written | None:
    """Let a held mail go on."""
    if entry.held_next:
        return leases.set_held(engine, entry, record, held=False)
    if entry.segment.lane != HELD:
        return None
    return engine.replace_entry(entry, engine.new_entry(record._replace(held=False)))


def expire(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> LiveEntry | None:
    """Give a mail up; one that a consumer has is left to it."""
    if entry in engine.working:
        return None
    left = dict(zip(record.numbers, record.envelope.recipients, strict=True))
    dead_letter = as_dead_letter(record, left, EXPIRED)
    if dead_letter is None:
        return None
    is_held = record.held or entry.held_next  # so that requeued it is held again
    return engine.replace_entry(entry, dead_letter._replace(held=is_held))


def requeue(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> LiveEntry:
    """Give a dead letter a new entry; its failures are forgotten."""
    again = record._replace(dead=False, reason=None, failures={}, due_us=0)
    return engine.replace_entry(entry, engine.new_entry(again))


def view_of(engine: Engine, entry: LiveEntry, record: EnvelopeRecord) -> MailView:
    """Return a mail as people see it."""
    is_delayed = record.due_us > engine.now_us() and entry.state is not State.LEASED
    return MailView(
        enqueue_id=UUID(bytes=record.enqueue_id),
        mail_id=UUID(bytes=record.mail_id),
        mail=record.envelope,
        accepted_at=instant(record.accepted_us),
        enqueued_at=instant(record.enqueued_us),
        due_at=instant(record.due_us) if is_delayed else None,
        held=record.held or entry.held_next,
        attempt=record.attempt,
        size_bytes=record.size_bytes,
        last_error=record.error,
        reason=record.reason,
    )


FRESH = timedelta(seconds=60)
"""Age that a count of ages may be."""

OPERATIONS: Mapping[Operation, EntryStep] = {
    Operation.REMOVE: remove,
    Operation.FLUSH: flush,
    Operation.HOLD: hold,
    Operation.RELEASE: release,
    Operation.EXPIRE: expire,
    Operation.REQUEUE: requeue,
    Operation.DISCARD: remove,
}
"""Effect of each operation on one mail."""
