"""Checkpoints, where recovery begins: two places in one file, written alternately. FORMAT.md 7.

Source: LQ-14..17, LQ-31 (a fixed place: found at once, and one seek in many seconds).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct, error

from postroad.embedded.log.frames import checksum
from postroad.embedded.log.layout import Lane
from postroad.embedded.log.options import MIB
from postroad.errors import StoreDamaged, StoreFailed
from postroad.ports.files import File

MAGIC = b"PRcheck1"
SLOT_BYTES = MIB

_HEAD = Struct("<IQQQQII")
_LANE = Struct("<IIQ")
_CRC = Struct("<I")


@dataclass(frozen=True, slots=True)
class LaneState:
    """A lane at the checkpoint: the first segment that belongs to the store, and its end."""

    first_sequence: int
    end: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`end` is P and `scan_from` is S of FORMAT.md 7; `working` are positions of STARTs."""

    number: int
    taken_us: int = 0
    end: int = 0
    scan_from: int = 0
    lanes: dict[Lane, LaneState] = field(default_factory=dict)
    working: tuple[int, ...] = ()

    def encode(self) -> bytes:
        body = _HEAD.pack(
            len(self.lanes),
            self.number,
            self.taken_us,
            self.end,
            self.scan_from,
            len(self.working),
            0,
        )
        body += b"".join(
            _LANE.pack(lane, state.first_sequence, state.end) for lane, state in self.lanes.items()
        )
        body += Struct(f"<{len(self.working)}Q").pack(*self.working)
        return MAGIC + _CRC.pack(checksum(body)) + body


def decode(data: bytes) -> Checkpoint | None:
    """Read one slot; None when it has no checkpoint with a right checksum."""
    if data[:8] != MAGIC:
        return None
    try:
        lane_count, number, taken_us, end, scan_from, working_count, _ = _HEAD.unpack_from(data, 12)
        lanes_at = 12 + _HEAD.size
        working_at = lanes_at + lane_count * _LANE.size
        working = Struct(f"<{working_count}Q").unpack_from(data, working_at)
    except error:
        return None
    stop = working_at + 8 * working_count
    if _CRC.pack(checksum(data[12:stop])) != data[8:12]:
        return None
    lanes = {
        lane: LaneState(first, lane_end)
        for lane, first, lane_end in _LANE.iter_unpack(data[lanes_at:working_at])
    }
    return Checkpoint(number, taken_us, end, scan_from, lanes, working)


def read_checkpoint(file: File) -> Checkpoint:
    """Return the later checkpoint. Raises: StoreDamaged when neither slot is readable."""
    found = [
        checkpoint
        for slot in (0, 1)
        if (checkpoint := decode(file.pread(slot * SLOT_BYTES, SLOT_BYTES))) is not None
    ]
    if not found:
        raise StoreDamaged("neither copy of the checkpoint is readable")
    return max(found, key=lambda each: each.number)


def write_checkpoint(file: File, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to the slot of the older one. Durable when it returns."""
    data = checkpoint.encode()
    if len(data) > SLOT_BYTES:
        raise StoreFailed("too many entries are leased for a checkpoint")
    file.pwrite(checkpoint.number % 2 * SLOT_BYTES, data)
    file.sync()
