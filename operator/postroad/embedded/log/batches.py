"""What one flush writes to a lane: records appended to one or several segments.

Source: AMB-5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from postroad.embedded.log import segments
from postroad.embedded.log.layout import Layout
from postroad.embedded.log.segments import Segment
from postroad.ports.files import Files


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames for one segment, from `offset` on. `earlier`: the segment before it of this process,
    in the first batch of a segment."""

    segment: Segment
    offset: int
    parts: list[bytes] = field(default_factory=list)
    earlier: Segment | None = None


def write(files: Files, layout: Layout, batches: list[Batch], to_sync: Segment | None) -> None:
    """Write batches, and sync `to_sync`. Blocking."""
    for batch in batches:
        segment = batch.segment
        if segment.file is None:
            if batch.earlier is not None:  # AMB-5: only the newest segment may need a sync
                batch.earlier.opened().sync()
            segments.make(files, layout, segment)
        if batch.parts:
            segment.opened().pwrite(batch.offset, b"".join(batch.parts))
    if to_sync is not None:
        to_sync.opened().sync()


def part_at(batches: Iterable[Batch], segment: Segment, offset: int) -> bytes | None:
    """Return the frame at an offset of a segment; None when the batches do not have it."""
    for batch in batches:
        if batch.segment is segment and offset >= batch.offset:
            at = batch.offset
            for part in batch.parts:
                if at == offset:
                    return part
                at += len(part)
    return None
