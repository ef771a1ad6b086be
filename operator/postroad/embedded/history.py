"""History of a store: the segments of its archive, and those of its log as the last checkpoint has
them. It is read beside the process that owns the store. FORMAT.md 7 and 11.

A mail that waits keeps its segment in the log, for as long as it is held, delayed or a dead letter;
what happened to the others in that segment is known all the same."""

from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePath
from typing import NamedTuple

from postroad.domain.values.instants import duration_us
from postroad.embedded.log import frames
from postroad.embedded.log.frames import Frame
from postroad.embedded.log.layout import KEYS, Lane, Layout, segment_of
from postroad.embedded.log.segments import HEADER_BLOCK, Header, offset_of, read_header, sequence_of
from postroad.embedded.log.slots import Checkpoint, read_checkpoint
from postroad.embedded.store.archive import Archived, ArchivedName, frames_in, read_archive
from postroad.errors import StoreDamaged, StoreFailed
from postroad.ports.files import File, Files

LEEWAY = timedelta(minutes=1)
"""Delay between its moment and its record: a mail is accepted when its content is there, and is in
the log behind the sync of its spool file."""


class HistorySegment(NamedTuple):
    """A segment, to be read up to `end`. `archived`: its name in the archive; None: in the log."""

    path: PurePath
    salt: bytes
    since_us: int
    end: int
    archived: ArchivedName | None = None


@dataclass(frozen=True, slots=True)
class StoreHistory:
    """All that was recorded before `through_us` and after `begun_us` is in these segments, unless
    it was dropped, or read and deleted before. `begun_us`: 0: nothing was let go without an
    archive; None: nothing is known."""

    archived: Archived
    segments: Sequence[HistorySegment]
    begun_us: int | None
    through_us: int


class SegmentRead(NamedTuple):
    """Records that could be read of a segment. `is_whole`: all that was there."""

    header: Header | None
    frames: Sequence[Frame]
    is_whole: bool


def read_history(files: Files, layout: Layout, now_us: int) -> StoreHistory | None:
    """Return the history of a store; None of one that is not archived. Raises: StoreDamaged,
    StoreFailed."""
    while (archived := read_archive(files, layout)) is not None:
        found = _read_history(files, layout, archived, now_us)
        # Between the two listings, no segment went from the log to the archive.
        if found is not None and read_archive(files, layout) == archived:
            return found
    return None


def _read_history(
    files: Files, layout: Layout, archived: Archived, now_us: int
) -> StoreHistory | None:
    """Return the archive, and the log by the last checkpoint; None: a segment went meanwhile."""
    # Before the log is listed: a segment that is begun in between would count as lost.
    checkpoint = _read_checkpoint(files, layout)
    ends = {
        (lane, sequence_of(state.end)): offset_of(state.end)
        for lane, state in checkpoint.lanes.items()
    }
    newest, headers, is_quiet = dict(ends.keys()), dict[tuple[Lane, int], Header](), True
    for lane, sequence in sorted(filter(None, map(segment_of, files.names(layout.log)))):
        if lane == KEYS:
            continue
        try:
            file = files.open(layout.segment(lane, sequence))
        except FileNotFoundError:
            return None
        with closing(file):
            header = read_header(file.pread(0, HEADER_BLOCK))
            if header is None and sequence <= newest.get(lane, 0):
                raise StoreDamaged(f"{layout.segment(lane, sequence)} has no valid header")
            if header is None:
                continue  # not yet a segment
            end = ends.get((lane, sequence), header.first)
            is_quiet &= sequence < newest.get(lane, 0) or not _goes_on(file, end)
        if sequence <= newest.get(lane, 0):
            headers[lane, sequence] = header
            before = header.previous_end
            ends.setdefault((lane, sequence_of(before)), offset_of(before))
    if missing := headers.keys() - ends.keys():
        raise StoreDamaged(f"there is a segment missing behind {layout.segment(*min(missing))}")
    log = [
        HistorySegment(layout.segment(*place), header.salt, header.created_us, ends[place])
        for place, header in headers.items()
    ]
    moved = [
        HistorySegment(layout.archive / str(each), each.salt, each.created_us, each.end, each)
        for each in archived.segments
    ]
    begun_us = max((each.begun_us for each in archived.begun), default=None)
    there = {*headers, *((each.lane, each.sequence) for each in archived.segments)}
    if begun_us is None and _has_all(checkpoint, there):
        is_first_log = layout.quarantine.name not in files.names(layout.root)
        begun_us = 0 if is_first_log else None
    through_us = (now_us if is_quiet else checkpoint.taken_us) - duration_us(LEEWAY)
    return StoreHistory(archived, [*moved, *log], begun_us, max(0, through_us))


def _has_all(checkpoint: Checkpoint, there: Collection[tuple[Lane, int]]) -> bool:
    """True if each segment that the log ever had is among these or after the checkpoint."""
    return all(
        (lane, sequence) in there
        for lane, state in checkpoint.lanes.items()
        for sequence in range(1, state.first_sequence)
        if lane != KEYS
    )


def _read_checkpoint(files: Files, layout: Layout) -> Checkpoint:
    try:
        file = files.open(layout.checkpoint)
    except FileNotFoundError as error:
        raise StoreDamaged("the checkpoint is missing") from error
    with closing(file):
        return read_checkpoint(file)


def _goes_on(file: File, offset: int) -> bool:
    return file.pread(offset, len(frames.MAGIC)) == frames.MAGIC


def read_segment(
    files: Files, layout: Layout, segment: HistorySegment, first: int
) -> SegmentRead | None:
    """Read a segment from an offset on, wherever it is by now; None of one that was dropped
    meanwhile, which the archive names then."""
    file = _opened(files, layout, segment)
    if file is None:
        return None
    data = b""
    with closing(file), suppress(StoreFailed):
        data = file.pread(0, file.size())
    header = read_header(data[:HEADER_BLOCK])
    if header is None or header.salt != segment.salt:
        return SegmentRead(None, (), is_whole=False)
    found, is_whole = frames_in(data, header, first, segment.end)
    return SegmentRead(header, found, is_whole)


def _opened(files: Files, layout: Layout, segment: HistorySegment) -> File | None:
    try:
        return files.open(segment.path)
    except FileNotFoundError:
        archived = read_archive(files, layout)
    for each in () if archived is None else archived.segments:
        if each.salt == segment.salt and segment.archived is None:
            moved = segment._replace(path=layout.archive / str(each), archived=each)
            return _opened(files, layout, moved)
    return None
