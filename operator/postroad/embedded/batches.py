"""What one trip of a thread writes to a lane: records appended to one segment or several.

Source: AMB-5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from postroad.embedded import segments
from postroad.embedded.layout import Layout
from postroad.embedded.segments import Segment
from postroad.ports.files import Files


@dataclass(slots=True)
class Batch:
    """What one segment gets; `offset` is where it begins. `earlier` is the segment of this process
    before it, when this is the first that it gets."""

    segment: Segment
    offset: int
    parts: list[bytes] = field(default_factory=list)
    earlier: Segment | None = None


def write(files: Files, layout: Layout, batches: list[Batch], to_sync: Segment | None) -> None:
    """Write batches. Between two segments lies the barrier of AMB-5; so only the last one can hold
    anything that is not synced. Blocking."""
    for batch in batches:
        segment = batch.segment
        if segment.file is None:
            if batch.earlier is not None:
                batch.earlier.opened().sync()
            segments.make(files, layout, segment)
        if batch.parts:
            segment.opened().pwrite(batch.offset, b"".join(batch.parts))
    if to_sync is not None:
        to_sync.opened().sync()


def part_at(batches: Iterable[Batch], segment: Segment, offset: int) -> bytes | None:
    """Return the frame at an offset of a segment, None when it is not among the batches."""
    for batch in batches:
        if batch.segment is segment and offset >= batch.offset:
            at = batch.offset
            for part in batch.parts:
                if at == offset:
                    return part
                at += len(part)
    return None
