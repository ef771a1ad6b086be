"""One file of the log: its header, its garbage flags, its end, and its live entries. FORMAT.md 5.

A lane plans a segment in memory, so that it can append records while its thread makes the file.
A segment has its live entries, because maintenance removes its file when there are none."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from postroad.embedded.log.envelopes import EnvelopeRecord, Unreadable, decode_envelope, set_aside
from postroad.embedded.log.frames import Frame, checksum, frames, stray_frames
from postroad.embedded.log.layout import NEW, Lane, Layout, lane_name
from postroad.embedded.log.records import Record, decode
from postroad.embedded.log.spool_files import Kept
from postroad.errors import StoreDamaged, StoreFull
from postroad.ports.files import File, Files

MAGIC = b"PRlog001"
HEADER_BLOCK = 4096
HEAD_SIZE = 64
READ_SIZE = 1024 * 1024
_HEAD = Struct("<IIIQ16sQQ")
_CRC = Struct("<I")


def position(sequence: int, offset: int) -> int:
    return sequence << 32 | offset


def sequence_of(where: int) -> int:
    return where >> 32


def offset_of(where: int) -> int:
    return where & 0xFFFF_FFFF


def place(lane: Lane, where: int) -> str:
    """Return a position as text: lane.segment:offset."""
    return f"{lane_name(lane)}.{sequence_of(where)}:{offset_of(where)}"


class Header(NamedTuple):
    lane: Lane
    sequence: int
    envelopes: int
    limit: int
    salt: bytes
    previous_end: int
    created_us: int

    @property
    def first(self) -> int:
        """The offset of the first frame."""
        return HEADER_BLOCK + self.envelopes

    def encode(self) -> bytes:
        body = _HEAD.pack(*self)
        return MAGIC + _CRC.pack(checksum(body)) + body


def read_header(block: bytes) -> Header | None:
    """Read a header; None when it is cut or its checksum is wrong."""
    body = block[12:HEAD_SIZE]
    if len(block) < HEAD_SIZE or block[:8] != MAGIC or _CRC.pack(checksum(body)) != block[8:12]:
        return None
    return Header(*_HEAD.unpack(body))


@dataclass(slots=True, eq=False)
class Segment:
    """A segment of this store. The next frame goes to `end`; the file has those up to `written`;
    `file` is None until the lane's thread makes it. The ordinal of an ENVELOPE counts those of its
    segment, and is the place of its garbage flag. `live` maps ordinals to entries, `ids` are their
    bounds; `garbage` has the ordinals whose flags are not written yet."""

    header: Header
    seed: int
    end: int
    file: File | None = None
    written: int = 0
    next_ordinal: int = 0
    live: dict[int, LiveEntry] = field(default_factory=dict)
    ids: tuple[bytes, bytes] | None = None
    garbage: set[int] = field(default_factory=set)
    # Kept, because each record asks for them several times:
    lane: Lane = field(init=False)
    sequence: int = field(init=False)
    origin: int = field(init=False)
    """The position of offset 0."""

    def __post_init__(self) -> None:
        self.lane, self.sequence = self.header.lane, self.header.sequence
        self.origin = position(self.sequence, 0)

    @classmethod
    def planned(cls, header: Header) -> Segment:
        """Return a segment that has no file yet."""
        return cls(header, checksum(header.encode()), header.first)

    @property
    def end_position(self) -> int:
        return self.origin + self.end

    @property
    def name(self) -> str:
        return f"{lane_name(self.lane)}.{self.sequence:010}"

    def fits(self, size: int) -> bool:
        """True if a frame of this size and one more ENVELOPE fit. The first frame always does."""
        header = self.header
        has_room = self.end + size <= header.limit and self.next_ordinal < header.envelopes
        return has_room or self.end == header.first

    def opened(self) -> File:
        """Return the file, which the lane's thread must have made."""
        assert self.file is not None, self.name
        return self.file

    def read(self, offset: int, length: int) -> bytes:
        return self.opened().pread(offset, length)

    def unreadable(self, offset: int, error: Unreadable) -> Unreadable:
        """Return the error with the place of the record in this segment."""
        return Unreadable(f"log/{self.name} at offset {offset}: {error}")

    def damaged(self, offset: int) -> StoreDamaged:
        """Return the error for a place where this segment must have a frame and has none."""
        return StoreDamaged(f"log/{self.name} is damaged at offset {offset}")

    def garbage_flags(self) -> bytes:
        """Return the garbage flags on disk: 0 or 1 for each ordinal."""
        return self.read(HEADER_BLOCK, self.header.envelopes)

    def write_garbage_flags(self, numbers: list[int]) -> None:
        """Set flags, neighbours in one write. Not durable."""
        run: list[int] = []
        for number in [*sorted(numbers), -1]:
            if run and number != run[-1] + 1:
                self.opened().pwrite(HEADER_BLOCK + run[0], b"\1" * len(run))
                run = []
            run.append(number)


class State(IntEnum):
    DELAYED = 1
    READY = 2
    LEASED = 3
    PARKED = 4
    """Held, a dead letter, or unreadable: in no ready queue."""
    ENDED = 5


DELAYED, READY, LEASED, PARKED, ENDED = State


@dataclass(slots=True, eq=False, repr=False)
class LiveEntry:
    """A live entry, in a few words of memory: a store may have a million."""

    segment: Segment
    offset: int
    length: int
    ordinal: int
    enqueue_id: bytes
    slot: int
    accepted_us: int
    domains: str
    due: float
    """Seconds of the monotonic clock."""
    state: State = State.PARKED
    held_next: bool = False
    """True if a HOLD asks for this working entry to be held when it ends by a retry."""
    start: int = 0
    """The position of its START."""
    successor: LiveEntry | None = None
    """The entry that replaced it."""
    cached: tuple[EnvelopeRecord, Kept | None] | None = None
    """A new mail that is still in memory (engine.py)."""

    @property
    def position(self) -> int:
        return self.segment.origin + self.offset

    @property
    def end(self) -> int:
        """The position up to which its lane must be durable for this entry to be durable."""
        return self.position + self.length


def record_at(segment: Segment, frame: Frame) -> Record | None:
    """Decode the record in a frame; None for a type of a later format. Raises: Unreadable, with the
    place."""
    try:
        return decode(frame.type, frame.payload)
    except Unreadable as error:
        raise segment.unreadable(frame.offset, error) from error


def envelope_at(segment: Segment, offset: int, payload: bytes) -> EnvelopeRecord:
    """Decode the ENVELOPE of an offset. Raises: Unreadable, with the place."""
    try:
        return decode_envelope(payload)
    except Unreadable as error:
        raise segment.unreadable(offset, error) from error


def waiting_at(segment: Segment, offset: int, payload: bytes) -> EnvelopeRecord:
    """Decode the ENVELOPE of a mail that waits, or what stands for one that is set aside. Raises:
    Unreadable, where its fixed part cannot be read."""
    try:
        return envelope_at(segment, offset, payload)
    except Unreadable as error:
        return set_aside(payload, error)


def make(files: Files, layout: Layout, segment: Segment) -> None:
    """Make a planned segment's file, with name and header durable when it returns. Blocking. Zeros
    fill a segment of lane `new` if there is space, because a sync of blocks that are already
    allocated does not wait for the file system's journal. An unused file of that name is taken."""
    path = layout.segment(segment.lane, segment.sequence)
    try:
        segment.file = files.open(path, create=True)
    except FileExistsError:
        segment.file = files.open(path)
    if segment.lane == NEW:
        try:
            fill_with_zeros(segment.file, segment.header.limit)
        except StoreFull:
            segment.file.truncate(0)  # what is left of the disk is for records
    head = segment.header.encode()
    unset = bytes(HEADER_BLOCK - len(head) + segment.header.envelopes)
    segment.file.pwrite(0, head, unset)
    segment.file.sync()  # before the first frame, which is damage where a cut takes the header
    files.sync_directory(layout.log)  # else a cut takes the name, with mail that got its 250


def fill_with_zeros(file: File, length: int) -> None:
    """Write zeros from the end of the file up to `length`."""
    start = file.size()
    for offset in range(start, length, READ_SIZE):
        file.pwrite(offset, bytes(min(READ_SIZE, length - offset)))


def find_end(segment: Segment, known_durable: int) -> tuple[int, int]:
    """Find the end of a lane's newest segment: its offset, and the offset up to which it is known
    to be durable. `known_durable` stands in the checkpoint; frames before it are not read. Raises:
    StoreDamaged when a durable frame is not valid. FORMAT.md 5.1."""
    data = segment.read(0, segment.opened().size())
    end, durable = segment.header.first, known_durable
    if sequence_of(known_durable) == segment.sequence:
        end = max(end, offset_of(known_durable))
    for frame in frames(data, segment.seed, end):
        end, durable = frame.end, max(durable, frame.durable)
    for stray in stray_frames(data, segment.seed, end):
        durable = max(durable, stray.durable)
    if durable > position(segment.sequence, min(end, len(data))):
        raise segment.damaged(min(end, len(data)))
    is_here = sequence_of(durable) == segment.sequence
    return end, offset_of(durable) if is_here else segment.header.first
