"""Dead letters: mail that was given up, kept apart with the reason."""

from __future__ import annotations

from dataclasses import replace as copy
from uuid import UUID

from postroad.distributed.endings import CLEANED, end, mark_if_passed
from postroad.distributed.engine import Engine
from postroad.domain.attempts import AttemptOutcomes
from postroad.domain.entries import Ending, EndingKind, Entry, Mark
from postroad.domain.identifiers import moment_of
from postroad.domain.mail import Envelope
from postroad.ports.view import DeadLetter

OVER_THE_LIMIT = "delivery limit exceeded: consumers crashed on it repeatedly"


def month_of(enqueue_id: UUID) -> str:
    """Return the month that a dead letter is filed under, e.g. `2026-01`: that of its id, so that
    giving an entry up twice writes one letter."""
    return f"{moment_of(enqueue_id):%Y-%m}"


async def give_up(
    engine: Engine,
    entry: Entry,
    envelope: Envelope,
    reason: str,
    outcomes: AttemptOutcomes | None = None,
) -> Mark | None:
    """Move an entry to the dead letters: letter, then mark. After a crash between them, the process
    that meets the entry or the letter next finishes it. Durable, idempotent.

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
    return await _end(engine, entry, letter, outcomes)


async def finish(engine: Engine, entry: Entry) -> bool:
    """Finish a `give_up` that stopped between letter and mark. Returns whether the entry is
    dead."""
    letter = await engine.view.letter(month_of(entry.enqueue_id), entry.enqueue_id)
    return letter is not None and await _end(engine, entry, letter) is None


async def _end(
    engine: Engine, entry: Entry, letter: DeadLetter, outcomes: AttemptOutcomes | None = None
) -> Mark | None:
    ending = Ending(EndingKind.REJECTED, engine.clock.now())
    standing = await end(engine, entry, ending, outcomes)
    if standing is None or is_rejected(standing):
        return None
    # Where no mark is left, or an unknown one, the entry may have ended with this letter.
    if letter.is_decoded and standing is not CLEANED and not standing.is_unknown:
        await engine.view.delete_letter(letter)
    return standing


def is_rejected(mark: Mark) -> bool:
    """Return whether the ending of a mark is a dead letter. A consumer that had the entry in hand
    meanwhile may have delivered it all the same: its letter is stale then."""
    is_given_up = mark.ending is not None and mark.ending.kind is EndingKind.REJECTED
    return is_given_up and mark.delivered_at is None
