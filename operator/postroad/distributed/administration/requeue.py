"""Requeue: dead letters get a new entry.

The new entry's key is written into the dead letter first, and its message once its row is in: so a
requeue that stopped half way continues with the same entry, or ends it when its row may have come
too late, and it can tell an entry that is over from one that never existed. A claim keeps two
processes from requeueing the same dead letter. Source: ADR 0018."""

from dataclasses import replace as copy
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries.dead_letters import dead_letter_of, end_as_dead
from postroad.distributed.entries.replacement import (
    is_free,
    is_withdrawn,
    publish,
    withdraw,
    withdraw_row,
)
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.domain.queues.entries import Change, Entry, EntryKey
from postroad.domain.queues.references import Reference, decode, encode
from postroad.errors import UnreadableReference
from postroad.ports.view import DeadLetter, Record


async def requeue_dead_letter(engine: Engine, dead_letter: DeadLetter) -> bool:
    """Give one dead letter a new entry. Returns whether this call did; False when another process
    has its claim, when it is stale, or when it cannot be decoded."""
    owner = UUID(int=engine.randomness.bits(128))
    if not await engine.view.claim(dead_letter.enqueue_id, owner, engine.timing.claim):
        return False
    try:
        current = await dead_letter_of(engine, dead_letter)
        if current is None or await _is_in_flight(engine, current):
            return False
        return await _requeue(engine, current)
    finally:
        await engine.view.release_claim(dead_letter.enqueue_id, owner)


async def _is_in_flight(engine: Engine, dead_letter: DeadLetter) -> bool:
    """True if administration gave a mail up that it had replaced while a consumer had it: the mail
    is being delivered, or was, and the dead letter is stale once its mark shows that."""
    previous = () if dead_letter.entry is None else dead_letter.entry.previous
    for each in previous:
        if not await is_free(engine, each):
            return True
    return False


async def _requeue(engine: Engine, dead_letter: DeadLetter) -> bool:
    if dead_letter.entry is None:
        return await _hand_back(engine, dead_letter)
    standing = await end_as_dead(engine, dead_letter.entry)
    if standing is not None:
        if not standing.is_unknown:
            await engine.view.delete_dead_letter(dead_letter)
        return False
    entry, key = dead_letter.entry, dead_letter.requeued_as
    was_withdrawn = key is not None and await _is_withdrawn(engine, key)
    if key is not None and _is_queued(dead_letter) and not was_withdrawn:
        return await _go_on(engine, dead_letter, _again(entry, key))
    if key is not None and (was_withdrawn or engine.is_overdue(key)):
        if not await _withdraw(engine, _again(entry, key)):
            if await engine.view.mark(key) is not None:
                await engine.view.delete_dead_letter(dead_letter)
            return False
        key = None
    if key is None:
        key = await engine.new_key(after=entry.enqueue_id)
        await engine.view.rewrite_dead_letter(copy(dead_letter, requeued_as=key))
    new = _again(entry, key)
    await _forget_failures(engine, entry)
    await engine.view.insert(new)
    current = None if engine.is_overdue(key) else await _naming(engine, dead_letter, key)
    if current is None:
        # The dead letter stays, and names a withdrawn entry, so requeue can be repeated. A dead
        # letter that names another entry, or is gone, was requeued by another process while this
        # one, or its machine, stood still: that process found no row to withdraw.
        await _withdraw(engine, new)
        return False
    body = encode(Reference.to(new, claim=True))
    await engine.view.rewrite_dead_letter(copy(current, body=body))
    if not new.held:  # a message would lead a consumer to it
        await publish(engine, new, 0)
    if await _is_withdrawn(engine, key):
        return False  # withdrawn by a process that may have ended before it chose another entry
    await engine.view.delete_dead_letter(dead_letter)
    return True


async def _is_withdrawn(engine: Engine, key: EntryKey) -> bool:
    """True if a process that found the new entry too slow withdrew it."""
    mark = await engine.view.mark(key)
    return mark is not None and is_withdrawn(mark)


async def _naming(engine: Engine, dead_letter: DeadLetter, key: EntryKey) -> DeadLetter | None:
    """Return the dead letter if it still names this new entry. Call it after the row was inserted:
    a process that chooses another entry afterwards finds the row."""
    current = await engine.view.dead_letter(dead_letter.month, dead_letter.enqueue_id)
    return current if current is not None and current.requeued_as == key else None


def _is_queued(dead_letter: DeadLetter) -> bool:
    """True if the dead letter has the message of its new entry, whose row then came in time. (An
    older release ignores such messages, and may have chosen another entry since.)"""
    try:
        return (
            dead_letter.body is not None and decode(dead_letter.body).key == dead_letter.requeued_as
        )
    except UnreadableReference:
        return False


async def _go_on(engine: Engine, dead_letter: DeadLetter, new: Entry) -> bool:
    """Finish a requeue whose new entry is in the queue, or was: where its row and its mark are
    gone, they were cleaned away. Its message may have been published; claims keep two messages
    apart."""
    passed = (await engine.limits_cache.refresh()).have_passed(new.key.slice_start)
    waits = not passed and await engine.view.mark(new.key) is None
    if waits and not new.held:
        await publish(engine, new, 0)
    await engine.view.delete_dead_letter(dead_letter)
    return waits


async def _hand_back(engine: Engine, dead_letter: DeadLetter) -> bool:
    """Publish the message of a dead letter again, if this release can decode it."""
    try:
        reference = decode(dead_letter.body or b"").again()
    except UnreadableReference:
        return False
    await engine.broker.publish(reference.key.enqueue_id, encode(reference))
    await engine.view.delete_dead_letter(dead_letter)
    return True


def _again(entry: Entry, key: EntryKey) -> Entry:
    """Return the new entry. One that expired while it was held is held again: it was to be looked
    at, as by a filter's quarantine, before it goes."""
    change = Change(entry.envelope.recipients, None, entry.held, entry.attempt, entry.last_error)
    return entry.with_change(key, change)


async def _withdraw(engine: Engine, new: Entry) -> bool:
    """Withdraw an entry whose row may have come too late to be seen. Returns whether it is
    withdrawn; False when a consumer has it in flight, or it ended otherwise: it was seen then."""
    owner = UUID(int=engine.randomness.bits(128))
    if not await engine.view.claim(new.enqueue_id, owner, engine.timing.claim):
        return False
    try:
        if await engine.view.row(new.key) is None and await engine.view.mark(new.key) is None:
            # A host of the view that stood still may carry out the insert at any time, and the row
            # would wait without a mark.
            await withdraw(engine, new)
        standing = await withdraw_row(engine, new)
    finally:
        await engine.view.release_claim(new.enqueue_id, owner)
    return standing is None or is_withdrawn(standing)


async def _forget_failures(engine: Engine, entry: Entry) -> None:
    records = await engine.view.records(entry.mail_id)
    now = engine.clock.now()
    forgotten = tuple(
        Record(recipient, Outcome.deferred(record.outcome.text), now)
        for recipient, record in records.items()
        if record.outcome.kind is OutcomeKind.FAILED
    )
    if forgotten:
        await engine.view.record(entry.mail_id, forgotten)
