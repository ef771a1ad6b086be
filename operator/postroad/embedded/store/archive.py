"""Keeps segments that a store needs no longer, until the pipeline has read them. FORMAT.md 11.

A store is archived while it has the directory `archive/`, which the pipeline makes. Nothing that
waits depends on it: a segment that cannot be moved there is removed, as it is without the
directory. All calls block."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePath
from typing import NamedTuple

from postroad.domain.values.instants import duration_us
from postroad.embedded.log.frames import Frame, checksum, frames, stray_frames
from postroad.embedded.log.layout import KEYS, Lane, Layout, lane_name, lane_of
from postroad.embedded.log.options import MIB
from postroad.embedded.log.segments import HEADER_BLOCK, Header, read_header
from postroad.errors import StoreFailed, StoreFull
from postroad.ports.files import Files
from postroad.telemetry import metrics
from postroad.telemetry.logs import logger

log = logger("embedded")

MAX_BYTES = 1024 * MIB
MAX_KEPT_FOR = timedelta(days=7)
"""Bytes that are kept for the pipeline at most, and no more bytes than are free beside it: mail
needs the disk more. The oldest go first."""

BOUNDED_EVERY = timedelta(minutes=5)
"""Interval at which an archive is bounded to which nothing is moved."""

MAX_OPEN = timedelta(hours=1)
"""Time that a process appends to one segment of an archived store."""

DAMAGED = ".damaged"
"""Suffix of a file that was set aside: it is neither read again nor deleted."""

_DROPPED, _BEGUN = "dropped", "begun"
_FAILURES = (FileNotFoundError, StoreFailed, StoreFull)
"""Errors of an archive that is gone, on another file system, full or read-only."""


class ArchivedName(NamedTuple):
    """The name of a segment in the archive, whose order is that of `obsolete_us`: when the
    checkpoint was taken behind which the store needed it no longer. `end`: the offset behind its
    last frame, without which a file that was cut short looks whole. No two segments of a store have
    the same salt, after a rebuild either."""

    obsolete_us: int
    created_us: int
    lane: Lane
    sequence: int
    end: int
    salt: bytes

    def __str__(self) -> str:
        place = f"{lane_name(self.lane)}.{self.sequence:010}.{self.end}"
        return f"{self.obsolete_us:016}.{self.created_us:016}.{place}.{self.salt.hex()}"


class ObsoleteSegment(NamedTuple):
    """A segment that the store needs no longer, with the offset behind its last frame."""

    header: Header
    end: int

    def path(self, layout: Layout) -> PurePath:
        return layout.segment(self.header.lane, self.header.sequence)


class DroppedName(NamedTuple):
    """The name of a file without content: segments of this time were dropped unread."""

    first_us: int
    before_us: int

    def __str__(self) -> str:
        return f"{_DROPPED}.{self.first_us:016}.{self.before_us:016}"


class BegunName(NamedTuple):
    """The name of a file without content: what the store let go from this moment on is in the
    archive, or was dropped. What it let go before was never kept, or a run has read it."""

    begun_us: int

    def __str__(self) -> str:
        return f"{_BEGUN}.{self.begun_us:016}"


@dataclass(frozen=True, slots=True)
class Archived:
    """Mails of an archive: segments, oldest first, what of them was dropped, and since when."""

    segments: Sequence[ArchivedName]
    dropped: Sequence[DroppedName]
    begun: Sequence[BegunName] = ()


def read_archive(files: Files, layout: Layout) -> Archived | None:
    """Return what lies in the archive; None: the store is not archived."""
    try:
        names = files.names(layout.archive)
    except FileNotFoundError:
        return None
    found = [read_name(each) for each in sorted(names)]
    return Archived(
        [each for each in found if isinstance(each, ArchivedName)],
        [each for each in found if isinstance(each, DroppedName)],
        [each for each in found if isinstance(each, BegunName)],
    )


def is_archived(files: Files, layout: Layout) -> bool:
    """True if the store has an archive that can be listed."""
    try:
        files.names(layout.archive)
    except _FAILURES:
        return False
    return True


def read_name(name: str) -> ArchivedName | DroppedName | BegunName | None:
    """Read a name in the archive; None for any other file."""
    parts = name.split(".")
    try:
        match parts:
            case [kind, first, before] if kind == _DROPPED:
                return DroppedName(int(first), int(before))
            case [kind, begun] if kind == _BEGUN:
                return BegunName(int(begun))
            case [obsolete, created, lane, *numbers, salt]:
                sequence, end = map(int, numbers)
                if (known := lane_of(lane)) is not None:
                    moments = (int(obsolete), int(created))
                    return ArchivedName(*moments, known, sequence, end, bytes.fromhex(salt))
    except ValueError:
        pass
    return None


def remove_obsolete(
    files: Files, layout: Layout, segments: Sequence[ObsoleteSegment], now_us: int
) -> None:
    """Take segments out of the log, behind the checkpoint of this moment (R4): into the archive of
    a store that is archived. The same again, after a crash, does what is left of it. Raises:
    StoreFailed where a segment cannot be removed."""
    left = [each for each in segments if each.header.lane != KEYS]
    try:
        _archive(files, layout, left, now_us)
    except _FAILURES as error:
        log.error("segments could not be archived: their history is lost", error=str(error))
        metrics.UNARCHIVED_SEGMENTS.inc(len(left))
        _name_lost(files, layout, [each.header.created_us for each in left], now_us)
    for each in segments:
        files.unlink(each.path(layout))  # idempotent: of those that were moved nothing is left
    files.sync_directory(layout.log)


def keep_bounds(files: Files, layout: Layout, now_us: int) -> None:
    """Drop what is beyond the bounds from the archive of a store that has one."""
    try:
        _bound(files, layout, now_us)
    except _FAILURES as error:
        log.warning("the archive could not be bounded", error=str(error))


def _archive(files: Files, layout: Layout, left: list[ObsoleteSegment], now_us: int) -> None:
    """Move segments into the archive, if there is one; `left` loses each that was moved."""
    if read_archive(files, layout) is None:
        return
    while left:
        header, end = left[-1]
        place = (header.lane, header.sequence, end, header.salt)
        name = ArchivedName(now_us, header.created_us, *place)
        files.rename(left[-1].path(layout), layout.archive / str(name))
        left.pop()
    files.sync_directory(layout.archive)  # before that of `log/`: a cut would take both names
    _bound(files, layout, now_us)


def obsolete_segment(files: Files, path: PurePath) -> ObsoleteSegment | None:
    """Return a segment that was left in the log before its first one; None for what has no valid
    header. Its end is that of its frames, because the one that followed may have gone."""
    file = files.open(path)
    try:
        header = read_header(file.pread(0, HEADER_BLOCK))
        return header and ObsoleteSegment(header, end_of(file.pread(0, file.size()), header))
    finally:
        file.close()


def _header_of(files: Files, path: PurePath) -> Header | None:
    file = files.open(path)
    try:
        return read_header(file.pread(0, HEADER_BLOCK))
    finally:
        file.close()


def name_lost(files: Files, layout: Layout, lost: Sequence[PurePath], now_us: int) -> None:
    """Name segments that never come into the archive, of a store that has one, as far as they can
    be read and a name can be written. Idempotent."""
    _name_lost(files, layout, list(_moments_begun(files, lost)), now_us)


def _name_lost(files: Files, layout: Layout, begun: Sequence[int], now_us: int) -> None:
    with suppress(*_FAILURES):
        archived = read_archive(files, layout)
        if archived is not None and begun:
            _name_dropped(files, layout, archived, DroppedName(min(begun), now_us))


def _moments_begun(files: Files, segments: Sequence[PurePath]) -> Iterator[int]:
    for path in segments:
        with suppress(*_FAILURES):
            if (header := _header_of(files, path)) is not None:
                yield header.created_us


def _bound(files: Files, layout: Layout, now_us: int) -> None:
    """Drop the oldest segments beyond the bounds."""
    archived = read_archive(files, layout)
    if archived is None:
        return  # there is none, or it was removed meanwhile
    too_many = _beyond(files, layout, archived.segments, now_us)
    if not too_many:
        return
    log.warning("the pipeline did not read archived segments in time", count=len(too_many))
    metrics.UNARCHIVED_SEGMENTS.inc(len(too_many))
    first_us = min(each.created_us for each in too_many)
    before_us = max(each.obsolete_us for each in too_many)
    _name_dropped(files, layout, archived, DroppedName(first_us, before_us))
    for each in too_many:  # behind the durable name: else the lake takes the gap for a quiet time
        files.unlink(layout.archive / str(each))


def _name_dropped(files: Files, layout: Layout, archived: Archived, more: DroppedName) -> None:
    """Let one durable name stand for what was dropped before, and for more."""
    before = archived.dropped
    now = DroppedName(
        min(each.first_us for each in (*before, more)),
        max(each.before_us for each in (*before, more)),
    )
    if now not in before:
        files.open(layout.archive / str(now), create=True).close()
        files.sync_directory(layout.archive)
    for each in before:  # behind the sync: a cut would leave neither the old names nor the new
        if each != now:
            files.unlink(layout.archive / str(each))


def _beyond(
    files: Files, layout: Layout, segments: Sequence[ArchivedName], now_us: int
) -> list[ArchivedName]:
    """Return those segments, of all by age, that are too old, or for which there is no room."""
    sizes = {each: _size_of(files, layout.archive / str(each)) for each in segments}
    free = files.room(layout.archive).bytes
    found, room = list[ArchivedName](), min(MAX_BYTES, (free + sum(sizes.values())) // 2)
    for each in reversed(segments):
        room -= sizes[each]
        if room < 0 or now_us - each.obsolete_us > duration_us(MAX_KEPT_FOR):
            found.append(each)
    return found


def begin_at(files: Files, layout: Layout, begun_us: int) -> None:
    """Let the archive say that it is kept since a moment. Durable when it returns."""
    name = BegunName(begun_us)
    archived = read_archive(files, layout)
    if archived is None or name in archived.begun:
        return
    files.open(layout.archive / str(name), create=True).close()
    files.sync_directory(layout.archive)
    for each in archived.begun:
        files.unlink(layout.archive / str(each))


def _size_of(files: Files, path: PurePath) -> int:
    try:
        file = files.open(path)
    except FileNotFoundError:
        return 0  # the pipeline has read it
    try:
        return file.size()
    finally:
        file.close()


def frames_in(data: bytes, header: Header, first: int, end: int) -> tuple[list[Frame], bool]:
    """Return the frames of a segment from one offset up to another, and whether they are all that
    was there. Behind damage, every frame that is still valid is among them."""
    seed = checksum(header.encode())
    found = list(frames(data[:end], seed, max(first, header.first)))
    reached = found[-1].end if found else max(first, header.first)
    if reached >= end:
        return found, True
    return [*found, *stray_frames(data[:end], seed, reached)], False


def end_of(data: bytes, header: Header) -> int:
    """Return the offset behind the frames of a segment."""
    end = header.first
    for frame in frames(data, checksum(header.encode()), header.first):
        end = frame.end
    return end
