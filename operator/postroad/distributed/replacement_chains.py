"""Long chains of administrative replacements are cut to what can still be in a consumer's hands.

Of a mail that is republished every minute while a delivery takes an hour, any of its entries may be
the one in hand, so none is forgotten for its age. One is forgotten when its claim is free a
redelivery delay after it was replaced: a consumer that had it before has ended it or claimed it by
then, and a message that comes later meets its mark. Source: ADR 0018; invariant 10.
"""

from __future__ import annotations

from dataclasses import replace as copy
from uuid import UUID

from postroad.distributed.engine import Engine
from postroad.domain.entries import LONG_CHAIN, Change
from postroad.domain.identifiers import moment_of
from postroad.domain.slices import EntryKey


async def cut(engine: Engine, change: Change) -> Change:
    """Return the change of an administrative replacement without the predecessors that are in no
    consumer's hands, where they are many. Raises: ViewError."""
    if len(change.previous) <= LONG_CHAIN:
        return change
    long_ago = _replaced_long_ago(engine, change.previous)
    free = {each for each in long_ago if await _is_free(engine, each)}
    return copy(change, previous=tuple(each for each in change.previous if each not in free))


def _replaced_long_ago(engine: Engine, chain: tuple[EntryKey, ...]) -> list[EntryKey]:
    """Return the entries of a chain that were replaced at least a redelivery delay ago, by any
    tolerated clock.

    The one after an entry is made before the entry is marked; the one after that is made by a
    process that has seen the mark.
    """
    before = engine.clock.now() - engine.timing.redelivery_delay - 2 * engine.timing.skew
    return [
        entry
        for entry, later in zip(chain, chain[2:], strict=False)
        if moment_of(later.enqueue_id) <= before
    ]


async def _is_free(engine: Engine, key: EntryKey) -> bool:
    """Whether an entry that was replaced is in no consumer's hands, and was not delivered in them.
    The mark is read after the claim: its last owner marked first."""
    owner = UUID(int=engine.randomness.bits(128))
    if not await engine.view.claim(key.enqueue_id, owner, engine.timing.claim):
        return False
    try:
        mark = await engine.view.mark(key)
    finally:
        await engine.view.release_claim(key.enqueue_id, owner)
    return mark is None or mark.delivered_at is None
