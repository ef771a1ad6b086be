"""Flush, hold, release, republish: administration changes waiting mails by replacing their turns.

Each goes over the mails that waited when it began, and never over its own replacements.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from postroad.distributed import replacement
from postroad.distributed.browse import Waiting, waiting
from postroad.distributed.concurrency import TRIES, count
from postroad.distributed.engine import Engine
from postroad.domain.entries import Change, EndingKind, Mark, Turn
from postroad.domain.selection import Selector

Decision = Callable[[Turn, datetime], Change | None]
"""What to change of a waiting turn at a moment; None: nothing."""


def flushed(turn: Turn, now: datetime) -> Change | None:
    """A delayed mail becomes due. A held one keeps its delay: it is the delay that `release`
    respects."""
    if turn.held or turn.due_at is None or turn.due_at <= now:
        return None
    return replacement.by_administration(turn, due_at=None)


def held(turn: Turn, now: datetime) -> Change | None:
    """A mail is kept back."""
    return None if turn.held else replacement.by_administration(turn, held=True)


def released(turn: Turn, now: datetime) -> Change | None:
    """A held mail goes on."""
    return replacement.by_administration(turn, held=False) if turn.held else None


def republished(older_than: timedelta) -> Decision:
    """A due mail whose turn began long ago gets a new turn, and so a new message."""

    def decide(turn: Turn, now: datetime) -> Change | None:
        is_due = not turn.held and (turn.due_at is None or turn.due_at <= now)
        began = max(turn.enqueued_at, turn.due_at or turn.enqueued_at)
        if not is_due or now - began <= older_than:
            return None
        return Change.nothing(turn)

    return decide


async def change(engine: Engine, selector: Selector, decide: Decision) -> int:
    """Change what waits and is selected; return how many mails. Raises: InvalidInput, ViewError,
    BrokerError, ClockSkew, ConfigurationStale."""
    selector.require_purpose()
    engine.check_open()
    began = engine.clock.now()
    latest = began + engine.timing.apart  # by the clock that accepted it, it waits by now

    async def one(each: Waiting) -> bool:
        is_meant = each.turn.accepted_at <= latest
        return is_meant and await change_turn(engine, each.row, decide, began)

    return await count(waiting(engine, selector), one)


async def change_turn(engine: Engine, turn: Turn, decide: Decision, now: datetime) -> bool:
    """Change one mail, starting from one of its turns. Returns whether it was changed by this
    call."""
    wanted = decide(turn, now)
    if wanted is None:
        standing = await engine.view.mark(turn.key)
    else:
        standing = await replacement.replace(engine, turn, wanted, tries=TRIES)
        if standing is None:
            return True
    return await _change_successor(engine, turn, standing or Mark(), decide, now)


async def _change_successor(
    engine: Engine, turn: Turn, standing: Mark, decide: Decision, now: datetime
) -> bool:
    """Somebody replaced the turn first: its successor is the mail now."""
    if standing.ending is None or standing.ending.kind is not EndingKind.REPLACED:
        return False
    if not await replacement.finish(engine, turn, standing):
        return False
    after = await engine.view.mark(turn.key) or Mark()
    if after.delivered_at is not None or after.ending is None:
        return False
    successor, change_made = replacement.replacement_of(after)
    return await change_turn(engine, turn.with_change(successor, change_made), decide, now)
