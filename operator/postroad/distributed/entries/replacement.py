"""The replacement of one entry by another, in exactly this order of steps (ADR 0003):

1. mark the old entry: `replaced`, with the successor and the change, unless it has a mark;
2. insert the successor's row;
3. publish it and wait for the confirm (a held one has no message);
4. write `published` into the old entry's mark.

A crash between any two leaves a mark that is not final: the process that meets it next (a
redelivery, another operation on the mail, maintenance) repeats 2 to 4. All of it is safe to run
several times at once.

Cuts long chains of administrative replacements to entries that a consumer may still have in
flight.

Of a mail that is republished every minute while a delivery takes an hour, any entry may be the one
in flight, so none is dropped for its age. An entry is dropped when its claim is free a redelivery
delay after it was replaced: a consumer that had it before has ended or claimed it by then, and a
message that comes later meets its mark. Source: ADR 0018; invariant 10."""

from dataclasses import replace as copy
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.timing import persist
from postroad.distributed.entries.endings import (
    CLEANED,
    came_too_late,
    delete_bytes,
    end,
    was_cleaned,
)
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.queues.entries import (
    LONG_CHAIN,
    Change,
    Ending,
    EndingKind,
    Entry,
    EntryKey,
    Mark,
)
from postroad.domain.queues.names import next_delay, redelivery_delay_after
from postroad.domain.queues.references import Reference, encode
from postroad.domain.values.identifiers import moment_of


async def cut(engine: Engine, change: Change) -> Change:
    """Return the change of an administrative replacement without the predecessors that are in no
    consumer's hands, where they are many. Raises: ViewError."""
    if len(change.previous) <= LONG_CHAIN:
        return change
    long_ago = _replaced_long_ago(engine, change.previous)
    free = {each for each in long_ago if await is_free(engine, each)}
    return copy(change, previous=tuple(each for each in change.previous if each not in free))


def _replaced_long_ago(engine: Engine, chain: tuple[EntryKey, ...]) -> list[EntryKey]:
    """Return the entries of a chain that were replaced at least a redelivery delay ago, by any
    tolerated clock. The key after an entry's is made before the entry is marked; the one after that
    is made by a process that has read the mark."""
    before = engine.clock.now() - engine.timing.redelivery_delay - 2 * engine.timing.skew
    return [
        entry
        for entry, later in zip(chain, chain[2:], strict=False)
        if moment_of(later.enqueue_id) <= before
    ]


async def is_free(engine: Engine, key: EntryKey) -> bool:
    """True if a replaced entry is in no consumer's hands, and was not delivered there. Read the
    mark after the claim: the claim's last owner marked first."""
    owner = UUID(int=engine.randomness.bits(128))
    if not await engine.view.claim(key.enqueue_id, owner, engine.timing.claim):
        return False
    try:
        mark = await engine.view.mark(key)
    finally:
        await engine.view.release_claim(key.enqueue_id, owner)
    return mark is None or mark.delivered_at is None


async def replace(
    engine: Engine,
    entry: Entry,
    change: Change,
    *,
    tries: int = 1,
    outcomes: AttemptOutcomes | None = None,
) -> Mark | None:
    """Replace an entry, after an attempt with these outcomes or after none. Durable when it
    returns. Returns None, or the mark that was there first and decides (nothing was changed then).
    Each half is tried `tries` times: repeated after an unknown outcome, it finds its own ending or
    another's. Raises: ServerError, ClockSkew, ConfigurationStale; the replacement is then not
    begun, or any process finishes it."""
    change = await cut(engine, change)
    successor = await engine.new_key(after=entry.enqueue_id)
    ending = Ending(EndingKind.REPLACED, engine.clock.now(), successor, change)
    standing = await persist(engine.backoff(), tries, lambda: end(engine, entry, ending, outcomes))
    if standing is not None and (standing.ending is None or standing.ending.successor != successor):
        return standing
    begun = standing or Mark(ending=ending)
    is_ours = await persist(engine.backoff(), tries, lambda: finish(engine, entry, begun))
    return None if is_ours else CLEANED


async def finish(engine: Engine, entry: Entry, mark: Mark) -> bool:
    """Finish an unfinished replacement of `entry`. Raises: as `replace`. Returns False where the
    entry was cleaned: then a process that was paused wrote the mark after that, and a successor
    would be a second entry of a mail that is over or has another. Until the end of any other
    replacement its mark holds the slices of both entries."""
    while mark.is_unfinished_replacement:
        if await was_cleaned(engine, entry.key):
            return False
        successor, change = replacement_of(mark)
        await withdraw_given_up(engine, entry, change)
        if mark.delivered_at is not None:
            await propagate_delivery(engine, entry, mark)
        elif await _is_too_late(engine, successor):
            if is_removed(await engine.view.mark(successor)):
                # A purge ended the successor before its row was in: the watermark is its mark, and
                # its bytes are deleted here.
                await engine.blobs.delete(entry.blob_key)
                await engine.view.mark_published(entry.key, successor.enqueue_id)
                return True
            await _choose_unless_it_comes(engine, entry, successor, change)
        else:
            new = entry.with_change(successor, change)
            if not await insert_successor(engine, new):
                # The mark of late mail holds no slice: unfinished, it needs a fresh successor.
                await choose_successor_anew(engine, entry, successor, change)
                mark = await engine.view.mark(entry.key) or Mark()
                continue
            if await _is_given_up(engine, entry, successor):
                await withdraw_row(engine, new)
                mark = await engine.view.mark(entry.key) or Mark()
                continue
            if not new.held:
                await publish(engine, new, _first_delay(engine, entry, new))
            if await engine.view.mark_published(entry.key, successor.enqueue_id):
                return True
            if await engine.view.mark(entry.key) is None:
                # Other processes finished the replacement, and its mark was cleaned away. The mail
                # may wait under this successor; a process that chose another one withdrew it.
                # Browse start has passed it where its row came, or came back, too late.
                await _withdraw_if_passed(engine, new)
                return True
            # Another process found this one too slow and chose another successor: withdraw ours.
            await withdraw_row(engine, new)
        mark = await engine.view.mark(entry.key) or Mark()
    return True


async def insert_successor(engine: Engine, new: Entry) -> bool:
    """Insert the row of an unfinished replacement's successor. Returns False when browse start has
    passed it; the row is then ended, if it is there.

    Then this process was suspended, or its virtual machine paused, since it read the mark; others
    finished the replacement, and the successor is over. Its row may have been cleaned away and is
    now back: it gets a mark, because a row without one is taken for late mail. The limits are read
    from the view, because to a paused machine its cached ones look fresh (ADR 0016). Raises:
    ViewError."""
    await engine.view.insert(new)
    return not await _withdraw_if_passed(engine, new)


async def _withdraw_if_passed(engine: Engine, new: Entry) -> bool:
    """End the row of a successor that browse start has passed, unless it has a mark. Returns
    whether browse start has passed it."""
    if not (await engine.view.limits()).have_passed(new.key.slice_start):
        return False
    await withdraw_row(engine, new)
    return True


def replacement_of(mark: Mark) -> tuple[EntryKey, Change]:
    ending = mark.ending
    assert ending is not None
    assert ending.successor is not None
    assert ending.change is not None
    return ending.successor, ending.change


async def publish(engine: Engine, entry: Entry, delay_seconds: int) -> None:
    """Publish a successor. Its message needs a claim, because it can be published twice."""
    body = encode(Reference.to(entry, claim=True))
    await engine.broker.publish(entry.enqueue_id, body, delay_seconds)


async def withdraw(engine: Engine, entry: Entry) -> Mark | None:
    """End an entry that must not exist. Returns the mark that was there first, if any, or
    `CLEANED`. Its row is inserted only after the mark, and only if the entry was not cleaned: a row
    that came back without a mark would be taken for late mail."""
    ending = Ending(EndingKind.WITHDRAWN, engine.clock.now())
    standing = await engine.view.end(entry.key, ending, entry.traits)
    if standing is None or is_withdrawn(standing):
        if await was_cleaned(engine, entry.key):
            return CLEANED if await engine.view.mark(entry.key) is not None else None
        await engine.view.insert(entry)
    return standing


async def withdraw_row(engine: Engine, entry: Entry) -> Mark | None:
    """End an entry that must not exist, however late: a missing row is not inserted, since its
    slice may be closed, unless a withdrawal stopped after its mark, because size subtracts marks
    from rows. Returns the mark that was there first, if any, or `CLEANED`."""
    if await engine.view.row(entry.key) is None:
        if await was_cleaned(engine, entry.key):
            return CLEANED
        mark = await engine.view.mark(entry.key)
        if mark is not None and is_withdrawn(mark):
            await engine.view.insert(entry)
        return None
    return await _end_as_withdrawn(engine, entry)


async def _end_as_withdrawn(engine: Engine, entry: Entry) -> Mark | None:
    ending = Ending(EndingKind.WITHDRAWN, engine.clock.now())
    standing = await engine.view.end(entry.key, ending, entry.traits)
    if standing is None and await came_too_late(engine, entry.key):
        return CLEANED
    return standing


def is_removed(mark: Mark | None) -> bool:
    return mark is not None and mark.ending is not None and mark.ending.kind is EndingKind.REMOVED


def is_withdrawn(mark: Mark) -> bool:
    return mark.ending is not None and mark.ending.kind is EndingKind.WITHDRAWN


async def propagate_delivery(engine: Engine, entry: Entry, mark: Mark) -> None:
    """Write the delivery of an entry into the marks of all its successors. A consumer held the mail
    while administration replaced it. Idempotent; where the successors' marks have the delivery,
    nothing is written."""
    assert mark.delivered_at is not None
    if mark.ending is None or mark.ending.kind is not EndingKind.REPLACED:
        return
    successor, change = replacement_of(mark)
    new = entry.with_change(successor, change)
    after = await engine.view.mark(new.key)
    if after is None or after.delivered_at is None:
        await engine.view.mark_delivered(new.key, mark.delivered_at, new.traits)
        after = await engine.view.mark(new.key) or Mark(mark.delivered_at)
    if not mark.published:
        # Insert the row after the mark: without a mark it waits, and is late mail if its slice was
        # passed.
        await engine.view.insert(new)
    await propagate_delivery(engine, new, after)
    if not mark.published:
        await engine.view.mark_published(entry.key, successor.enqueue_id)


async def _is_too_late(engine: Engine, successor: EntryKey) -> bool:
    """True if the successor's slice may be closed before its row is in, and the row is not."""
    return engine.is_overdue(successor) and await engine.view.row(successor) is None


async def _is_given_up(engine: Engine, entry: Entry, successor: EntryKey) -> bool:
    """True if another process chose another successor while this one was slow. Call it after the
    row was inserted: a process that chooses afterwards finds the row. The process that chose may
    have ended before it withdrew this successor, whose message would then deliver the mail."""
    if not engine.is_overdue(successor):
        return False
    mark = await engine.view.mark(entry.key)
    return mark is not None and replacement_of(mark)[0] != successor


async def _choose_unless_it_comes(
    engine: Engine, entry: Entry, old: EntryKey, change: Change
) -> None:
    """Choose a successor anew if the row of the old one is still missing. The claim keeps the old
    one's message, which may come now, from being attempted before it meets its mark. A refused
    claim is a consumer's, and then the row is there, or that of another process that does the
    same."""
    owner = UUID(int=engine.randomness.bits(128))
    is_ours = await engine.view.claim(old.enqueue_id, owner, engine.timing.claim)
    try:
        if await engine.view.row(old) is None:
            await choose_successor_anew(engine, entry, old, change)
    finally:
        if is_ours:
            await engine.view.release_claim(old.enqueue_id, owner)


async def choose_successor_anew(
    engine: Engine, entry: Entry, old: EntryKey, change: Change
) -> None:
    """Give an unfinished replacement a fresh successor, unless another process did or finished it:
    the mark's transaction decides. Raises: as `replace`."""
    fresh = await engine.new_key(after=entry.enqueue_id)
    previous = (*change.previous, old)
    if await engine.view.change_successor(entry.key, old.enqueue_id, fresh, previous):
        # End the old successor, whose row may still arrive from a slow process or write.
        standing = await withdraw(engine, entry.with_change(old, change))
        if is_removed(standing):
            # A purge ended the old successor first: it removes the mail.
            await _remove(engine, entry.with_change(fresh, change))


async def withdraw_given_up(engine: Engine, entry: Entry, change: Change) -> None:
    """End the successors that were given up for another one, where the process that chose it
    stopped before it did so: a host of the view that stood still may carry out the insert of such a
    row at any time, and the row would wait without a mark. They are the predecessors that the
    change names and the entry does not."""
    own = (*entry.previous, entry.key)
    given_up = [each for each in change.previous if each not in own]
    kept = copy(change, previous=tuple(each for each in change.previous if each in own))
    for key in given_up:
        if await engine.view.mark(key) is None:
            await withdraw(engine, entry.with_change(key, kept))


async def _remove(engine: Engine, entry: Entry) -> None:
    await engine.view.insert(entry)
    ending = Ending(EndingKind.REMOVED, engine.clock.now())
    if await engine.view.end(entry.key, ending, entry.traits) is None:
        await delete_bytes(engine, [entry.blob_key])


def _first_delay(engine: Engine, entry: Entry, new: Entry) -> int:
    """Return the delay of a new entry's first message, in seconds. An entry that a consumer may
    have in flight, or that follows such an entry too soon, waits one redelivery delay: by then that
    consumer has delivered the mail, or holds a claim on it (invariant 10)."""
    now = engine.limits_cache.now()
    due = next_delay(new.due_at, now)
    if due or not new.previous:
        return due
    was_due = not entry.held and (entry.due_at is None or entry.due_at <= now + engine.timing.skew)
    follows_soon = bool(entry.previous) and entry.enqueued_at > now - engine.timing.redelivery_delay
    return (
        redelivery_delay_after(0, engine.timing.redelivery_delay, 0.0)
        if was_due or follows_soon
        else 0
    )


def by_administration(entry: Entry, **changes: object) -> Change:
    """Return the change of an administrative replacement: only what is named."""
    return copy(Change.nothing(entry), **changes)  # type: ignore[arg-type]
