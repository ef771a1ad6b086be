"""Flush, hold, release, republish: administration changes waiting mails by replacing their entries.

Each changes the mails that waited when it began, and never its own replacements.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial

from postroad.distributed import replacement, requeue
from postroad.distributed.browse import WaitingMail, waiting
from postroad.distributed.concurrency import TRIES, count
from postroad.distributed.discard import discard
from postroad.distributed.engine import Engine
from postroad.distributed.remove import remove
from postroad.domain.entries import Change, EndingKind, EnqueuedMail, Mark
from postroad.domain.selection import Selector
from postroad.ports.administration import Operation

Decision = Callable[[EnqueuedMail, datetime], Change | None]
"""What to change of a waiting entry at a moment; None: nothing."""


def flushed(entry: EnqueuedMail, now: datetime) -> Change | None:
    """Make a delayed mail due. A held one keeps its delay, which `release` respects."""
    if entry.held or entry.due_at is None or entry.due_at <= now:
        return None
    return replacement.by_administration(entry, due_at=None)


def held(entry: EnqueuedMail, now: datetime) -> Change | None:
    """Hold a mail."""
    return None if entry.held else replacement.by_administration(entry, held=True)


def released(entry: EnqueuedMail, now: datetime) -> Change | None:
    """Release a held mail."""
    return replacement.by_administration(entry, held=False) if entry.held else None


def republished(older_than: timedelta) -> Decision:
    """Give a due mail whose entry began long ago a new entry, and so a new message."""

    def decide(entry: EnqueuedMail, now: datetime) -> Change | None:
        is_due = not entry.held and (entry.due_at is None or entry.due_at <= now)
        began = max(entry.enqueued_at, entry.due_at or entry.enqueued_at)
        if not is_due or now - began <= older_than:
            return None
        return Change.nothing(entry)

    return decide


async def change_waiting(decide: Decision, engine: Engine, selector: Selector) -> int:
    """Change the selected mails that wait; return how many. Raises: InvalidInput, ViewError,
    BrokerError, ClockSkew, ConfigurationStale."""
    selector.require_purpose()
    engine.check_open()
    began = engine.clock.now()
    latest = began + engine.timing.apart  # the accepting process's clock may be ahead

    async def one(each: WaitingMail) -> bool:
        is_meant = each.entry.accepted_at <= latest
        return is_meant and await change_entry(engine, each.row, decide, began)

    return await count(waiting(engine, selector), one)


async def change_entry(
    engine: Engine, entry: EnqueuedMail, decide: Decision, now: datetime
) -> bool:
    """Change one mail, starting from one of its entries. Returns whether this call changed it."""
    wanted = decide(entry, now)
    if wanted is None:
        standing = await engine.view.mark(entry.key)
    else:
        standing = await replacement.replace(engine, entry, wanted, tries=TRIES)
        if standing is None:
            return True
    return await _change_successor(engine, entry, standing or Mark(), decide, now)


async def _change_successor(
    engine: Engine, entry: EnqueuedMail, standing: Mark, decide: Decision, now: datetime
) -> bool:
    """Change the successor instead, where another process replaced the entry first."""
    if standing.ending is None or standing.ending.kind is not EndingKind.REPLACED:
        return False
    if not await replacement.finish(engine, entry, standing):
        return False
    after = await engine.view.mark(entry.key) or Mark()
    if after.delivered_at is not None or after.ending is None:
        return False
    successor, change_made = replacement.replacement_of(after)
    return await change_entry(engine, entry.with_change(successor, change_made), decide, now)


OPERATIONS: Mapping[Operation, Callable[[Engine, Selector], Awaitable[int]]] = {
    Operation.REMOVE: remove,
    Operation.FLUSH: partial(change_waiting, flushed),
    Operation.HOLD: partial(change_waiting, held),
    Operation.RELEASE: partial(change_waiting, released),
    Operation.REQUEUE: requeue.requeue,
    Operation.DISCARD: discard,
}
"""What each operation does. Each raises: InvalidInput for an empty selector, ServerError."""
