"""Rebuilds the state of a store from its log. FORMAT.md 5.1 and 9.

`find_lanes` does what receiving waits for: it opens the segments and cuts torn tails. `Replay` then
finds, record by record, which entries consumers had. A second recovery reads the same after both.
Source: LQ-13, LQ-19..23, LQ-33; AMB-7, AMB-12, AMB-13."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from postroad.embedded.log import frames
from postroad.embedded.log.envelopes import EnvelopeHead, EnvelopeRecord, Unreadable, read_head
from postroad.embedded.log.frames import Frame
from postroad.embedded.log.index import KeyIndex
from postroad.embedded.log.layout import NEW, Lane, Layout, lane_name, segment_of
from postroad.embedded.log.records import (
    ENVELOPE,
    OUTCOMES,
    DeliveryKind,
    DeliveryRecord,
    FinishRecord,
    HoldRecord,
    KeyRecord,
    Record,
    StartRecord,
    decode,
)
from postroad.embedded.log.segments import (
    HEADER_BLOCK,
    READ_SIZE,
    Segment,
    find_end,
    offset_of,
    position,
    read_header,
    sequence_of,
)
from postroad.embedded.log.slots import Checkpoint, LaneState
from postroad.embedded.store.archive import obsolete_segment, remove_obsolete
from postroad.errors import StoreDamaged
from postroad.ports.files import File, Files

ALL_FINISHED = "some recipients failed for good"
"""The reason of a dead letter whose consumer died between the last outcome and the ending."""


def find_lanes(
    files: Files,
    layout: Layout,
    checkpoint: Checkpoint,
    opened: ExitStack,
    *,
    is_reading: bool = False,
) -> tuple[dict[Lane, list[Segment]], dict[Lane, int]]:
    """Open every lane's segments and find their ends; cut and sync the newest unless `is_reading`.
    Returns them, oldest first, and the number of the next segment of each lane. `opened` closes
    their files. Raises: StoreDamaged."""
    found: dict[Lane, list[int]] = {lane: [] for lane in checkpoint.lanes}
    for name in files.names(layout.log):
        if (known := segment_of(name)) is not None:
            found.setdefault(known[0], []).append(known[1])
    lanes, following, old = {}, {}, list[PurePath]()
    for lane, sequences in found.items():
        state = checkpoint.lanes.get(lane, LaneState(1, 0))
        kept = sorted(each for each in sequences if each >= state.first_sequence)
        segments = _open_lane(files, layout, lane, kept, opened)
        _check_front(lane, state, segments)
        if segments:
            _fix_end(segments[-1], state.end, is_reading)
        lanes[lane] = segments
        newest = segments[-1].sequence if segments else state.first_sequence - 1
        following[lane] = max(newest, sequence_of(state.end)) + 1
        old += [layout.segment(lane, each) for each in sequences if each < state.first_sequence]
    if old and not is_reading:  # behind the checks of all lanes: a damaged log is left as it is
        _remove_obsolete(files, layout, old, checkpoint.taken_us)
    return lanes, following


def _remove_obsolete(files: Files, layout: Layout, paths: list[PurePath], now_us: int) -> None:
    old = {path: obsolete_segment(files, path) for path in paths}
    for path, segment in old.items():
        if segment is None:
            files.unlink(path)  # never used: of what was, opening read the header
    remove_obsolete(files, layout, [each for each in old.values() if each is not None], now_us)


def _open_lane(
    files: Files, layout: Layout, lane: Lane, sequences: list[int], opened: ExitStack
) -> list[Segment]:
    segments: list[Segment] = []
    for sequence in sequences:
        file = files.open(layout.segment(lane, sequence))
        opened.callback(file.close)
        block = file.pread(0, HEADER_BLOCK)
        header = read_header(block)
        if header is None:
            is_newest = sequence == sequences[-1]
            if is_newest and _was_never_used(file):
                file.close()
                break
            raise StoreDamaged(f"log/{lane_name(lane)}.{sequence:010} has no valid header")
        if (header.lane, header.sequence) != (lane, sequence):
            raise StoreDamaged(
                f"the header of log/{lane_name(lane)}.{sequence:010} names another segment"
            )
        segment = Segment.planned(header)
        segment.file = file
        if segments:
            _join(segments[-1], segment)
        segments.append(segment)
    return segments


def _was_never_used(file: File) -> bool:
    """True if a file has no frame. Its header is durable before the first one, so it was unused."""
    return all(
        frames.MAGIC not in file.pread(offset, READ_SIZE + 4)
        for offset in range(0, file.size(), READ_SIZE)
    )


def _join(earlier: Segment, later: Segment) -> None:
    """Set the earlier segment's end from the later one's header."""
    end = later.header.previous_end
    if sequence_of(end) != earlier.sequence or offset_of(end) < earlier.header.first:
        raise StoreDamaged(
            f"there is a segment missing between log/{earlier.name} and {later.name}"
        )
    earlier.end = earlier.written = offset_of(end)


def _check_front(lane: Lane, state: LaneState, segments: list[Segment]) -> None:
    missing = (
        segments[0].sequence > state.first_sequence
        if segments
        else sequence_of(state.end) >= state.first_sequence
    )
    if missing:
        raise StoreDamaged(f"log/{lane_name(lane)}.{state.first_sequence:010} is missing")


def _fix_end(segment: Segment, known_durable: int, is_reading: bool) -> None:
    """Find the end, write again what may not be durable, cut and sync (FORMAT.md R5)."""
    end, proven = find_end(segment, known_durable)
    segment.end = segment.written = end
    if is_reading:
        return
    file = segment.opened()
    # R5: the sync alone may pass over pages whose write failed before (A1). A power cut would take
    # records that this process acts on: a START of it would name no ENVELOPE.
    if proven < end:
        file.pwrite(proven, file.pread(proven, end - proven))
    file.truncate(end)
    file.sync()


def read_frames(segment: Segment, start: int, size: int = READ_SIZE) -> tuple[list[Frame], int]:
    """Return the frames in about `size` bytes from `start`, with offsets in the segment, and the
    offset of the next. Raises: StoreDamaged."""
    stop = min(start + size, segment.end)
    data = segment.read(start, stop - start)
    found = [
        frame._replace(offset=start + frame.offset, end=start + frame.end)
        for frame in frames.frames(data, segment.seed)
    ]
    reached = found[-1].end if found else start
    if reached == start and stop < segment.end:
        return read_frames(segment, start, size * 4)
    if stop == segment.end and reached != stop:
        raise segment.damaged(reached)
    return found, reached


def stretches(segments: list[Segment], start: int) -> Iterator[tuple[Segment, int]]:
    """Yield the segments from position `start` on, with the offset of the first frame."""
    for segment in segments:
        if segment.end_position > start:
            is_first = segment.sequence == sequence_of(start)
            first = segment.header.first
            yield segment, max(first, offset_of(start)) if is_first else first


@dataclass(slots=True)
class Work:
    """A working entry: the place of its ENVELOPE, and the outcomes of its recipients."""

    entry_number: int
    lane: Lane
    position: int
    finished: set[int] = field(default_factory=set)
    failures: dict[int, str] = field(default_factory=dict)
    held: bool | None = None


@dataclass(slots=True)
class Replay:
    """Working entries and garbage after the records so far. Feed lane `new` before the others."""

    checkpoint: Checkpoint
    working: dict[bytes, Work] = field(default_factory=dict)
    garbage: set[tuple[Lane, int]] = field(default_factory=set)
    records: int = 0
    keys: KeyIndex = field(default_factory=KeyIndex)

    @property
    def start(self) -> int:
        """The position in lane `new` to read from."""
        return self.checkpoint.scan_from

    def start_of(self, lane: Lane) -> int:
        """The position in another lane to read from."""
        state = self.checkpoint.lanes.get(lane)
        return 0 if state is None else state.end

    def feed(self, lane: Lane, where: int, record: Record | EnvelopeHead) -> None:
        """Apply the record at position `where`."""
        self.records += 1
        if not isinstance(record, KeyRecord):
            self.keys.see(record.mail_id)
        is_old = lane == NEW and where < self.checkpoint.end
        match record:
            case StartRecord(mail_id, entry_number, of_lane, of_position):
                if not is_old or where in self.checkpoint.working:
                    self.garbage.add((of_lane, of_position))
                    self.working[mail_id] = Work(entry_number, of_lane, of_position)
            case DeliveryRecord():
                if (work := self.working.get(record.mail_id)) is not None:
                    _deliver(work, record)
            case HoldRecord(mail_id, _, held):
                if (work := self.working.get(mail_id)) is not None:
                    work.held = held
            case FinishRecord() if not is_old:
                self.garbage.add((record.lane, record.position))
                self._end(record.mail_id, record.entry_number)
            case EnvelopeHead() if not is_old:
                self.garbage.add((record.predecessor_lane, record.predecessor))
                self._end(record.mail_id, record.entry_number - 1)

    def feed_frame(self, segment: Segment, frame: Frame) -> None:
        """Apply the record of a frame. Raises: StoreDamaged."""
        if frame.type == OUTCOMES:
            return  # decides nothing, so that nothing in it keeps the store from opening
        where = position(segment.sequence, frame.offset)
        try:
            if frame.type == ENVELOPE:
                self.feed(segment.lane, where, read_head(frame.payload))
            elif (record := decode(frame.type, frame.payload)) is not None:
                self.feed(segment.lane, where, record)
        except Unreadable as error:
            raise segment.unreadable(frame.offset, error) from error

    def _end(self, mail_id: bytes, entry_number: int) -> None:
        """End a mail's working entry, unless it is later than `entry_number`."""
        work = self.working.get(mail_id)
        if work is not None and work.entry_number <= entry_number:
            del self.working[mail_id]


def _deliver(work: Work, record: DeliveryRecord) -> None:
    if record.kind is DeliveryKind.DEFERRED:
        return
    work.finished.update(record.numbers)
    if record.kind is DeliveryKind.FAILED:
        work.failures.update(dict.fromkeys(record.numbers, record.text))


def resumed(record: EnvelopeRecord, work: Work) -> EnvelopeRecord | None:
    """Return the next ENVELOPE of a working entry, or None when no recipient is left. It has the
    same enqueue id and attempts, and is due at once. When all recipients are finished and some
    failed, it is a dead letter, so that an administrator sees the failures."""
    addresses = dict(zip(record.numbers, record.envelope.recipients, strict=True))
    failures = dict(record.failures)
    failures.update(
        {n: (addresses[n], text) for n, text in work.failures.items() if n in addresses}
    )
    left = {number: to for number, to in addresses.items() if number not in work.finished}
    again = record._replace(
        entry_number=work.entry_number + 1,
        due_us=0,
        held=record.held if work.held is None else work.held,
        predecessor=(work.lane, work.position),
        failures=failures,
    )
    return with_recipients(again, left) if left else as_dead_letter(again, {}, ALL_FINISHED)


def with_recipients(record: EnvelopeRecord, left: Mapping[int, str]) -> EnvelopeRecord:
    """Return `record` for these recipients, by number."""
    envelope = replace(record.envelope, recipients=tuple(left.values()))
    return record._replace(envelope=envelope, numbers=tuple(left))


def as_dead_letter(
    record: EnvelopeRecord, left: Mapping[int, str], reason: str
) -> EnvelopeRecord | None:
    """Return a dead letter for recipients left and failed; None when there are none."""
    failed = {number: to for number, (to, _) in record.failures.items()}
    recipients = dict(sorted({**left, **failed}.items()))
    if not recipients:
        return None
    dead = record._replace(dead=True, held=False, due_us=0, reason=reason)
    return with_recipients(dead, recipients)
