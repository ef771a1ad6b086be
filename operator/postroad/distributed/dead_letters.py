"""Dead letters: mail that was given up, kept apart with the reason."""

from __future__ import annotations

from dataclasses import replace as copy
from uuid import UUID

from postroad.distributed.endings import CLEANED, end, mark_if_passed
from postroad.distributed.engine import Engine
from postroad.domain.entries import Ending, EndingKind, EnqueuedMail, Mark
from postroad.domain.identifiers import moment_of
from postroad.domain.mail import Envelope
from postroad.ports.view import DeadLetter

OVER_THE_LIMIT = "consumers broke down over it more often than the delivery limit allows"


def month_of(enqueue_id: UUID) -> str:
    """Return the month that a dead letter is filed under, e.g. `2026-01`: that of its id, so that
    burying twice is burying once."""
    return f"{moment_of(enqueue_id):%Y-%m}"


async def give_up(
    engine: Engine, entry: EnqueuedMail, envelope: Envelope, reason: str
) -> Mark | None:
    """Move a turn to the dead letters: letter, then mark; a crash between is
    finished by whoever meets the entry or the letter next. Durable, idempotent.

    Returns None, or the mark of an entry that ended otherwise before; it has no letter then.
    """
    over = await mark_if_passed(engine, entry)
    if over is not None:
        return over
    now = engine.clock.now()
    letter = DeadLetter(
        entry.enqueue_id, month_of(entry.enqueue_id), now, reason, copy(entry, envelope=envelope)
    )
    await engine.view.write_letter(letter)
    return await _end(engine, entry, letter)


async def finish(engine: Engine, entry: EnqueuedMail) -> bool:
    """Finish a burial that stopped between letter and mark. Returns whether the entry is dead."""
    letter = await engine.view.letter(month_of(entry.enqueue_id), entry.enqueue_id)
    return letter is not None and await _end(engine, entry, letter) is None


async def _end(engine: Engine, entry: EnqueuedMail, letter: DeadLetter) -> Mark | None:
    ending = Ending(EndingKind.REJECTED, engine.clock.now())
    standing = await end(engine, entry, ending)
    if standing is None or is_rejected(standing):
        return None
    # Where nothing tells any more how the entry ended, it may have ended with this letter.
    if letter.is_decoded and standing is not CLEANED and not standing.is_unknown:
        await engine.view.delete_letter(letter)
    return standing


def is_rejected(mark: Mark) -> bool:
    """Return whether a mark says that the entry went to the dead letters."""
    return mark.ending is not None and mark.ending.kind is EndingKind.REJECTED
