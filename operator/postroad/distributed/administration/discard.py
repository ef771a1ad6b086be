"""Discard: dead letters end for good. The letter is deleted, then its bytes.

A claim excludes a requeue meanwhile. The bytes are deleted only while no other process can have had
the claim since the letter was read, and while the entry's mark still shows that the entry was given
up: a suspended process may have written the letter after the entry had ended otherwise. Else the
audit decides, as it does for what a discard that stopped half way leaves, and for letters that are
old enough to have come back with a server which missed their deletion.
"""

from __future__ import annotations

from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries.dead_letters import end_as_dead, letter_of
from postroad.distributed.entries.endings import delete_bytes
from postroad.domain.queues.lifetimes import DEAD_LETTER_RETURN
from postroad.domain.values.identifiers import moment_of
from postroad.ports.view import DeadLetter


async def discard_letter(engine: Engine, letter: DeadLetter) -> bool:
    """End a dead letter. Returns whether this call ended it. A letter stays that a requeue gives
    a new entry, or that this release cannot decode. Raises: ServerError."""
    owner, began = UUID(int=engine.randomness.bits(128)), engine.clock.elapsed()
    if not await engine.view.claim(letter.enqueue_id, owner, engine.timing.claim):
        return False
    try:
        current = await letter_of(engine, letter)
        if current is None or current.requeued_as is not None or not current.is_decoded:
            return False
        if current.entry is not None:
            standing = await end_as_dead(engine, current.entry)
            if standing is not None:
                # The mail ended otherwise, or waits: only the letter is stale.
                if not standing.is_unknown:
                    await engine.view.delete_letter(current)
                return False
        await engine.view.delete_letter(current)
        was_ours = engine.clock.elapsed() - began < engine.timing.claim / 2
        limits = await engine.limits_cache.limits()
        if current.entry is None or limits.have_passed(current.entry.key.slice_start):
            return True
        if was_ours and _was_never_deleted(engine, current):
            await delete_bytes(engine, [current.entry.blob_key])
        return True
    finally:
        await engine.view.release_claim(letter.enqueue_id, owner)


def _was_never_deleted(engine: Engine, letter: DeadLetter) -> bool:
    """Whether this cannot be a letter that was requeued and came back since, unknown to the view:
    an older release deletes letters without a note. Then the mail may wait on these bytes."""
    return engine.clock.now() - moment_of(letter.enqueue_id) < DEAD_LETTER_RETURN
