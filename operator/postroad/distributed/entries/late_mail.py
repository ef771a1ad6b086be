"""Late mail: an entry before browse start that has a row and no final mark.

No entry that was over looks like this: cleanup deletes rows before marks, and a process that brings
a row back, after it was suspended or its machine paused, marks it before it publishes a message
(`replacement.insert_successor`). So the row came after its slice was passed, from a process whose
clock stood still (a virtual machine that its hypervisor paused) or was wrong in a way that no
comparison of clocks shows. The mail was acknowledged, so it gets a new entry. Source: ADR 0016;
invariant 7.
"""

from __future__ import annotations

from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries import replacement
from postroad.domain.queues.entries import (
    Change,
    Ending,
    EndingKind,
    Entry,
    EntryKey,
    Mark,
    UndecodableRow,
)
from postroad.errors import Undecodable
from postroad.telemetry import metrics


async def rescue_if_late(engine: Engine, key: EntryKey) -> bool:
    """Give a new entry to an entry before browse start that had no final mark when it was read, if
    its row is there. Returns whether it was. Raises: as `replacement.replace`, Undecodable."""
    row = await engine.view.row(key)
    if row is None:
        return False
    if isinstance(row, UndecodableRow):
        raise Undecodable(f"row {key.enqueue_id} cannot be decoded: {row.reason}")
    await rescue(engine, row)
    return True


async def rescue(engine: Engine, entry: Entry) -> None:
    """Replace a late entry, as administration replaces one. The first of several processes to do so
    wins; the others finish its replacement. Raises: as `replacement.replace`."""
    successor = await engine.new_key(after=entry.enqueue_id)
    ending = Ending(EndingKind.REPLACED, engine.clock.now(), successor, Change.nothing(entry))
    standing = await engine.view.end(entry.key, ending, entry.traits)
    if standing is None:
        metrics.LATE.labels(engine.label).inc()
        engine.log.error(
            "a mail came too late for its slice and gets a new entry: a clock is wrong",
            enqueue_id=str(entry.enqueue_id),
            slice=entry.key.slice_start.isoformat(),
        )
    await replacement.finish(engine, entry, standing or Mark(ending=ending))
