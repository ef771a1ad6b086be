"""Cuts long chains of administrative replacements to entries that a consumer may still have in
hand.

Of a mail that is republished every minute while a delivery takes an hour, any entry may be the one
in hand, so none is dropped for its age. An entry is dropped when its claim is free a redelivery
delay after it was replaced: a consumer that had it before has ended or claimed it by then, and a
message that comes later meets its mark. Source: ADR 0018; invariant 10.
"""

from __future__ import annotations

from dataclasses import replace as copy
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.domain.queues.entries import LONG_CHAIN, Change, EntryKey
from postroad.domain.values.identifiers import moment_of


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

    The key after an entry's is made before the entry is marked; the one after that is made by a
    process that has read the mark.
    """
    before = engine.clock.now() - engine.timing.redelivery_delay - 2 * engine.timing.skew
    return [
        entry
        for entry, later in zip(chain, chain[2:], strict=False)
        if moment_of(later.enqueue_id) <= before
    ]


async def _is_free(engine: Engine, key: EntryKey) -> bool:
    """Whether a replaced entry is in no consumer's hands, and was not delivered there. Read the
    mark after the claim: the claim's last owner marked first."""
    owner = UUID(int=engine.randomness.bits(128))
    if not await engine.view.claim(key.enqueue_id, owner, engine.timing.claim):
        return False
    try:
        mark = await engine.view.mark(key)
    finally:
        await engine.view.release_claim(key.enqueue_id, owner)
    return mark is None or mark.delivered_at is None
