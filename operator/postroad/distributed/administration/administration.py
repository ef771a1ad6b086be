"""Flush, hold, release, republish: administration changes waiting mails by replacing their entries.
Expire: it moves them to the dead letters. Requeue, discard: it gives dead letters a new entry, or
ends them.

Each changes the mails that waited when it began, and never its own replacements. Of entries that
another reader of the view found, by their keys, each row and mark is read again, so that what ended
or was replaced meanwhile is met as by any operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from uuid import UUID

from postroad.distributed.administration.dead_queue import discard_dead_letter
from postroad.distributed.administration.remove import remove, remove_entry
from postroad.distributed.administration.requeue import requeue_dead_letter
from postroad.distributed.dequeue.items import BYTES_MISSING
from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.limits_cache import Beginning
from postroad.distributed.engine.timing import TRIES, count, each_of, on_change, persist, results
from postroad.distributed.entries import dead_letters, replacement
from postroad.distributed.reading.browse import WaitingMail, as_it_waits, waiting
from postroad.domain.delivery.events import ChangedMail
from postroad.domain.queues.entries import Change, EndingKind, Entry, EntryKey, Mark
from postroad.domain.queues.selection import Selector
from postroad.errors import BlobMissing
from postroad.ports.mail_queue import EXPIRED, Operation
from postroad.ports.view import DeadLetter

ChangeDecision = Callable[[Entry, datetime], Change | None]
"""Change to a waiting entry at a moment; None: nothing."""

EntryStep = Callable[[Engine, Entry, datetime], Awaitable[Mark | None]]
"""Changes a waiting entry and returns None, or the mark that stands there; one without an ending
where there was nothing to do."""

DeadLetterStep = Callable[[Engine, DeadLetter], Awaitable[bool]]
"""Changes a dead letter. Returns whether this call did."""

_Found = tuple[Entry | None, WaitingMail | None]
"""An entry, and how its mail waits now, where events are made of it."""


def flushed(entry: Entry, now: datetime) -> Change | None:
    """Make a delayed mail due. A held one keeps its delay, which `release` respects."""
    if entry.held or entry.due_at is None or entry.due_at <= now:
        return None
    return replacement.by_administration(entry, due_at=None)


def held(entry: Entry, now: datetime) -> Change | None:
    return None if entry.held else replacement.by_administration(entry, held=True)


def released(entry: Entry, now: datetime) -> Change | None:
    return replacement.by_administration(entry, held=False) if entry.held else None


def republished(older_than: timedelta) -> EntryStep:
    """Give a due mail whose entry began long ago a new entry, and so a new message."""

    def decide(entry: Entry, now: datetime) -> Change | None:
        is_due = not entry.held and (entry.due_at is None or entry.due_at <= now)
        began = max(entry.enqueued_at, entry.due_at or entry.enqueued_at)
        if not is_due or now - began <= older_than:
            return None
        return Change.nothing(entry)

    return replacing(decide)


def replacing(decide: ChangeDecision) -> EntryStep:
    async def step(engine: Engine, entry: Entry, now: datetime) -> Mark | None:
        wanted = decide(entry, now)
        if wanted is None:
            return await engine.view.mark(entry.key) or Mark()
        return await replacement.replace(engine, entry, wanted, tries=TRIES)

    return step


async def expired(engine: Engine, entry: Entry, now: datetime) -> Mark | None:
    """A waiting mail becomes a dead letter. The mark says rejected, not expired: a release that
    knows no such dead letters would delete the bytes of an expired entry when its message comes,
    and the dead letter when it is requeued (ADR 0030)."""
    return await given_up(engine, entry, EXPIRED)


async def given_up(engine: Engine, entry: Entry, reason: str) -> Mark | None:
    """A waiting mail becomes a dead letter for the recipients who did not get it. A mail without
    such recipients is left to its consumer, which is about to end it."""
    mark = await engine.view.mark(entry.key)
    if mark is not None:
        return mark
    envelope = await dead_letters.undelivered(engine, entry)
    if envelope is None:
        return Mark()
    work = partial(dead_letters.give_up, engine, entry, envelope, reason)
    standing = await persist(engine.backoff(), TRIES, work)
    if standing is None:
        engine.on_ending()
    return standing


async def change_waiting(
    step: EntryStep,
    engine: Engine,
    selector: Selector,
    operation: Operation | None = None,
    *,
    is_attempted: bool = False,
) -> int:
    """Change the selected mails that wait; return how many. `operation`: by which events are made;
    None: none are. `is_attempted`: a mail that it changes is attempted at once, and may wait again.
    Raises: InvalidInput, ViewError, BrokerError, ClockSkew, ConfigurationStale."""
    selector.require_purpose()
    engine.check_open()
    began = await engine.limits_cache.begin()
    changes = _Changes(engine, began)

    async def one(each: WaitingMail) -> bool:
        return await change_entry(engine, each.row, step, began.at)

    found = (
        each
        async for each in waiting(engine, began, selector)
        if each.entry.accepted_at <= began.latest
        # Else a next hop that defers at once has mail attempted over and over: its entries come
        # into the slice that is read last, as fast as they are read.
        and not (is_attempted and changes.has_made(each.entry))
    )
    if operation is not None and (events := await engine.events(operation)) is not None:
        found = events.over(found, partial(_to_change, operation))
    return await count(found, one)


class _Changes:
    """Tells an operation on many mails what came of its own changes. An entry that was made after
    it began has a later moment than any before, but for what clocks may differ by: mails that it
    met in that time are remembered."""

    def __init__(self, engine: Engine, began: Beginning) -> None:
        self._clock, self._latest = engine.clock, began.latest
        self._met: set[UUID] = set()
        differ = began.latest - began.at + engine.timing.apart
        self._until = engine.clock.elapsed() + differ

    def has_made(self, entry: Entry) -> bool:
        """Return whether an entry is a result of the operation; else note its mail."""
        if entry.enqueued_at > self._latest or entry.mail_id in self._met:
            return True
        if self._clock.elapsed() < self._until:
            self._met.add(entry.mail_id)
        return False


def _to_change(operation: str, waiting: WaitingMail | None) -> ChangedMail | None:
    """Return what events say of a mail; None: the operation will not change it."""
    if waiting is None or (operation == Operation.HOLD and waiting.entry.held):
        return None
    return waiting.to_change()


async def change_entry(engine: Engine, entry: Entry, step: EntryStep, now: datetime) -> bool:
    """Change one mail, from one of its entries on. Returns whether this call changed it."""
    standing = await step(engine, entry, now)
    return standing is None or await _change_successor(engine, entry, standing, step, now)


async def _change_successor(
    engine: Engine, entry: Entry, standing: Mark, step: EntryStep, now: datetime
) -> bool:
    """Go on to the successor of an entry that was replaced first: it is the mail now."""
    if standing.ending is None or standing.ending.kind is not EndingKind.REPLACED:
        return False
    if not await replacement.finish(engine, entry, standing):
        return False
    after = await engine.view.mark(entry.key) or Mark()
    if after.delivered_at is not None or after.ending is None:
        return False
    successor, change_made = replacement.replacement_of(after)
    return await change_entry(engine, entry.with_change(successor, change_made), step, now)


async def change_dead_letters(
    step: DeadLetterStep, engine: Engine, selector: Selector, *, is_attempted: bool = False
) -> int:
    """Change the selected dead letters, one after the other; return how many. `is_attempted`: as in
    `change_waiting`. Raises: InvalidInput, ServerError."""
    selector.require_purpose()
    engine.check_open()
    changed, changes = 0, _Changes(engine, await engine.limits_cache.begin())
    async for dead_letter in dead_letters.selected(engine, selector):
        if is_attempted and dead_letter.entry and changes.has_made(dead_letter.entry):
            continue  # it was requeued, and refused again: there would be no end
        is_changed = await step(engine, dead_letter)
        changed += is_changed
        on_change.get()(is_changed, False)
    return changed


OPERATIONS: Mapping[Operation, Callable[[Engine, Selector], Awaitable[int]]] = {
    Operation.REMOVE: remove,
    Operation.FLUSH: partial(change_waiting, replacing(flushed), is_attempted=True),
    Operation.HOLD: partial(change_waiting, replacing(held), operation=Operation.HOLD),
    Operation.RELEASE: partial(change_waiting, replacing(released)),
    Operation.EXPIRE: partial(change_waiting, expired, operation=Operation.EXPIRE),
    Operation.REQUEUE: partial(change_dead_letters, requeue_dead_letter, is_attempted=True),
    Operation.DISCARD: partial(change_dead_letters, discard_dead_letter),
}
"""Effect of each operation. Each raises: InvalidInput for an empty selector, ServerError."""


class EntryChange(StrEnum):
    """Changes to waiting mails that were found by their entries."""

    REMOVE = "remove"
    HOLD = "hold"
    RELEASE = "release"
    FLUSH = "flush"
    EXPIRE = "expire"
    REPUBLISH = "republish"
    GIVE_UP_WITHOUT_BYTES = "give-up-without-bytes"


async def change_found(
    engine: Engine, change: EntryChange, keys: Iterable[EntryKey], selector: Selector
) -> int:
    """Change the mails that wait under these entries, or under their successors, and that are
    selected; return how many. Raises: InvalidInput for an empty selector, ServerError, ClockSkew,
    ConfigurationStale."""
    selector.require_purpose()
    engine.check_open()
    await engine.limits_cache.refresh()
    began, step = engine.limits_cache.now(), _STEPS[change]

    events = await engine.events(change)

    async def find(key: EntryKey) -> _Found:
        row = await engine.view.row(key)
        if not isinstance(row, Entry) or not selector.matches(row, began):
            return None, None
        return row, None if events is None else await as_it_waits(engine, row)

    async def one(each: _Found) -> bool:
        return each[0] is not None and await change_entry(engine, each[0], step, began)

    found = results(each_of(keys), find)
    if events is not None:
        found = events.over(found, lambda each: _to_change(change, each[1]))
    return await count(found, one)


async def _removed(engine: Engine, entry: Entry, now: datetime) -> Mark | None:
    return None if await remove_entry(engine, entry) else Mark()


def _with_message(entry: Entry, now: datetime) -> Change | None:
    """Give a mail another message, also one that is not due yet; a held one has none."""
    return None if entry.held else Change.nothing(entry)


async def _without_bytes(engine: Engine, entry: Entry, now: datetime) -> Mark | None:
    """A waiting mail whose bytes are missing becomes a dead letter. The mark is read after the
    bytes: an ending deletes them after it wrote its mark."""
    try:
        async for _ in engine.blobs.stream(entry.blob_key):
            return Mark()
    except BlobMissing:
        return await given_up(engine, entry, BYTES_MISSING)
    return Mark()  # an object without any octet is there too


_STEPS: Mapping[EntryChange, EntryStep] = {
    EntryChange.REMOVE: _removed,
    EntryChange.HOLD: replacing(held),
    EntryChange.RELEASE: replacing(released),
    EntryChange.FLUSH: replacing(flushed),
    EntryChange.EXPIRE: expired,
    EntryChange.REPUBLISH: replacing(_with_message),
    EntryChange.GIVE_UP_WITHOUT_BYTES: _without_bytes,
}
