"""The bytes of a store as FORMAT.md has them, and what a reader makes of damaged ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import PurePosixPath
from struct import pack

import pytest

from crash.lossy import LossyFiles
from postroad.distributed.engine.timing import Timing
from postroad.domain.mail.shapes import Shape
from postroad.embedded.log import envelopes, frames, lanes, segments, slots, spool_files
from postroad.embedded.log import lanes as batches
from postroad.embedded.log.frames import checksum
from postroad.embedded.log.index import LIFETIME_US
from postroad.embedded.log.lanes import Batch
from postroad.embedded.log.layout import (
    DEAD,
    FORMAT,
    HELD,
    KEYS,
    NEW,
    Layout,
    lane_name,
    lane_of,
    segment_of,
)
from postroad.embedded.log.options import MAX_MAIL_LEASE, MIB, TOLERANCE, StoreOptions
from postroad.embedded.log.records import DeliveryKind, FinishKind
from postroad.embedded.log.segments import Header, Segment
from postroad.embedded.log.slots import SLOT_BYTES, Checkpoint, LaneState
from postroad.embedded.log.spool_files import SpoolHeader
from postroad.embedded.offline_tools import log_salvage
from postroad.embedded.rpc import rpc, serving
from postroad.embedded.store import administration, engine, maintenance
from postroad.errors import StoreDamaged, StoreFailed
from postroad.ports.files import File

ROOT = PurePosixPath("/store")
LAYOUT = Layout(ROOT, ROOT / "mail")
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("lane", "name"),
    [
        (NEW, "new"),
        (HELD, "held"),
        (DEAD, "dead"),
        (KEYS, "4294967293s"),
        (60, "60s"),
        (1, "1s"),
    ],
)
def test_a_lane_is_named_after_its_seconds_or_its_purpose(lane: int, name: str) -> None:
    assert (lane_name(lane), lane_of(name)) == (name, lane)
    assert segment_of(f"{name}.0000000012") == (lane, 12)
    assert LAYOUT.segment(lane, 12) == ROOT / "log" / f"{name}.0000000012"


@pytest.mark.parametrize("name", ["", "s", "60", "-1s", "xs", "NEW", "60ss"])
def test_other_names_are_no_lanes(name: str) -> None:
    assert lane_of(name) is None
    assert segment_of(f"{name}.1") is None


def test_lanes_have_the_numbers_of_the_format() -> None:
    assert (NEW, HELD, DEAD, KEYS) == (0, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFD)
    assert segment_of("new.x") is None
    assert segment_of("new") is None


def test_an_item_may_be_in_flight_as_long_as_in_the_distributed_engine() -> None:
    assert Timing().longest_mail_lease == MAX_MAIL_LEASE


def test_a_slot_is_a_file_in_a_directory_of_a_thousand() -> None:
    assert LAYOUT.spool_file(0) == ROOT / "mail/000000/000"
    assert LAYOUT.spool_file(999) == ROOT / "mail/000000/999"
    assert LAYOUT.spool_file(12_034) == ROOT / "mail/000012/034"
    others = [LAYOUT.store, LAYOUT.lock, LAYOUT.socket, LAYOUT.checkpoint, LAYOUT.quarantine]
    assert [each.name for each in others] == ["store", "lock", "socket", "checkpoint", "quarantine"]


@pytest.mark.parametrize(
    ("seconds", "lane"),
    [(0, NEW), (59.8, NEW), (59.9, 60), (60, 60), (299.8, 60), (299.9, 300), (10**6, 300)],
)
def test_a_delay_waits_in_the_longest_step_that_is_not_longer(seconds: float, lane: int) -> None:
    options = StoreOptions(steps=(300 * SECOND, 60 * SECOND))

    assert options.lane_for(timedelta(seconds=seconds)) == lane
    assert StoreOptions(steps=()).lane_for(timedelta(seconds=seconds)) == NEW


HEADER = Header(60, 7, 16, 8192, b"0123456789abcdef", 99, 123)


def test_the_header_of_a_segment() -> None:
    body = pack("<IIIQ16sQQ", 60, 7, 16, 8192, b"0123456789abcdef", 99, 123)
    whole = b"PRlog001" + pack("<I", checksum(body)) + body

    assert HEADER.encode() == whole
    assert len(whole) == 64
    assert segments.read_header(whole + bytes(4032)) == HEADER
    assert HEADER.first == 4096 + 16
    assert segments.read_header(whole[:63]) is None
    for at in (0, 8, 12, 63):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        assert segments.read_header(bytes(damaged)) is None


SPOOLED = SpoolHeader(0, bytes(range(16)), 5, 133, 9, 1, 2, 4, 123, 31, 6, 1000, 7)


def test_the_header_of_a_spool_file() -> None:
    body = pack("<I16sQQIIIIQIQQQ", *SPOOLED).ljust(116, b"\0")
    whole = b"PRspool1" + pack("<I", checksum(body)) + body

    assert SPOOLED.encode() == whole
    assert spool_files.read_header(whole) == SPOOLED
    assert spool_files.read_header(whole[:127]) is None
    assert spool_files.read_header(SPOOLED._replace(envelope_offset=0).encode()) is None
    for at in (0, 8, 12, 127):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        assert spool_files.read_header(bytes(damaged)) is None


@pytest.mark.parametrize(
    ("found", "shape"),
    [
        (0, None),
        (2 + 4 + 8 + 16, None),
        (1, Shape(4, False, False, False, 6, 1000, 7, False)),
        (1 + 2, Shape(4, True, False, False, 6, 1000, 7, False)),
        (1 + 4, Shape(4, False, True, False, 6, 1000, 7, False)),
        (1 + 8, Shape(4, False, False, True, 6, 1000, 7, False)),
        (1 + 16, Shape(4, False, False, False, 6, 1000, 7, True)),
    ],
)
def test_the_shape_of_a_content_stands_in_its_header(found: int, shape: Shape | None) -> None:
    assert SPOOLED._replace(found=found).shape == shape


USUAL = StoreOptions()
AGREED = {
    "octets and envelopes of a segment": (
        (USUAL.segment_bytes, USUAL.segment_envelopes), (16 << 20, 65_536)),
    "octets of an envelope": (USUAL.largest_envelope, 4 << 20),
    "what stays free": ((USUAL.least_free_bytes, USUAL.least_free_inodes), (64 << 20, 1000)),
    "free spool files": ((USUAL.pool_files, USUAL.pool_file_bytes), (2048, 256 << 10)),
    "a checkpoint is taken after": (USUAL.checkpoint_every, timedelta(seconds=15)),
    "records share a sync for": (USUAL.sync_wait, timedelta(milliseconds=2)),
    "slots are freed together after": (USUAL.free_wait, timedelta(milliseconds=20)),
    "a sparse segment is live by less than": (USUAL.compact_below, 0.25),
    "a retry may be early by": (TOLERANCE, timedelta(milliseconds=100)),
    "the format, and the version of the socket": ((FORMAT, rpc.PROTOCOL), (2, 1)),
    "octets of a frame of the socket": (rpc.MAX_FRAME, 16 << 20),
    "octets of a piece of content there": (rpc.MAX_DATA, 1 << 20),
    "octets of frames that are not whole, of all connections": (rpc.MAX_HELD, 64 << 20),
    "elements without a request for more": (rpc.BURST, 100),
    "slots that one process borrows": (serving.MAX_LEASED_SLOTS, 32),
    "octets of a page that the disk may refuse": (log_salvage.PAGE, 4096),
    "mails that one compaction moves": (maintenance.COMPACTED_AT_ONCE, 2000),
    "octets of contents in memory": (engine.MAX_BYTES, 16 << 20),
    "octets of the domains of a record": (envelopes.MAX_DOMAINS, 65_535),
    "numbers of recipients": (envelopes.NUMBERS, 1 << 32),
    "a mail has an enqueue key for": (LIFETIME_US, 24 * 3600 * 10**6),
    "records reach the disk by themselves after": (lanes.FLUSH_DELAY_SECONDS, 0.2),
    "the ages are counted anew after": (administration.FRESH, timedelta(minutes=1)),
}  # fmt: skip


@pytest.mark.parametrize(("value", "agreed"), AGREED.values(), ids=AGREED)
def test_a_store_has_the_usual_limits(value: object, agreed: object) -> None:
    assert value == agreed


def test_outcomes_and_ends_have_the_numbers_of_the_format() -> None:
    assert {each.name: each.value for each in DeliveryKind} == {
        "DELIVERED": 1,
        "FAILED": 2,
        "DEFERRED": 3,
        "DROPPED": 4,
    }
    assert {each.name: each.value for each in FinishKind} == {"DONE": 1, "REMOVED": 2}


def test_a_position_is_a_segment_and_an_offset() -> None:
    where = segments.position(7, 4112)

    assert where == 7 * 2**32 + 4112
    assert (segments.sequence_of(where), segments.offset_of(where)) == (7, 4112)
    assert segments.offset_of(segments.position(7, 2**32 - 1)) == 2**32 - 1
    assert segments.place(60, where) == "60s.7:4112"
    assert Segment.planned(HEADER).end_position == where
    assert Segment.planned(HEADER).name == "60s.0000000007"


def test_a_segment_is_full_by_its_bytes_or_its_envelopes() -> None:
    segment = Segment.planned(HEADER)
    assert segment.fits(10**9), "the first frame always does"

    segment.end += 80
    assert segment.fits(8192 - segment.end)
    assert not segment.fits(8192 - segment.end + 1)
    segment.next_ordinal = 15
    assert segment.fits(8)
    segment.next_ordinal = 16
    assert not segment.fits(8)


def opened(files: LossyFiles, name: str = "file") -> File:
    files.make_directory(ROOT)
    return files.open(ROOT / name, create=True)


class Noting:
    """A file that notes what is written and synced."""

    def __init__(self) -> None:
        self.did: list[tuple[object, ...]] = []

    def pwrite(self, offset: int, *parts: bytes) -> None:
        self.did.append((offset, *parts))

    def sync(self) -> None:
        self.did.append(("sync",))


def noting(segment: Segment) -> Noting:
    file = Noting()
    segment.file = file  # type: ignore[assignment]
    return file


def test_garbage_flags_of_neighbours_are_one_write() -> None:
    segment = Segment.planned(HEADER)
    file = noting(segment)

    segment.write_garbage_flags([9, 3, 0, 4, 5])
    segment.write_garbage_flags([])

    assert file.did == [(4096, b"\1"), (4099, b"\1\1\1"), (4105, b"\1")]


@pytest.mark.parametrize("payload", [b"", b"x", b"12345678"])
def test_a_frame(payload: bytes) -> None:
    body = pack("<IBBHQ", len(payload), 3, 0, 5, 77) + payload
    padding = bytes(-(8 + len(body)) % 8)
    seed = checksum(HEADER.encode())

    whole = frames.encode(seed, 3, 5, 77, payload)

    assert whole[:4] == b"PRf1"
    assert whole[8:] == body + padding
    assert frames.frame_size(len(payload)) == len(whole)
    found = frames.frame_at(b"8 octets" + whole, 8, seed)
    assert found == (8, 8 + len(whole), 3, 5, 77, payload)
    assert frames.frame_at(whole, 0, seed + 1) is None
    assert frames.frame_at(whole[: 23 + len(payload)], 0, seed) is None
    assert frames.frame_at(whole, len(whole), seed) is None


def test_frames_are_read_up_to_a_gap_and_behind_it() -> None:
    one, two, three = (frames.encode(1, 1, 0, 0, bytes([each])) for each in range(3))
    data = one + two + b"PRf1" + bytes(12) + three + b"x" + one

    read = [each.payload for each in frames.frames(data, 1)]
    strays = [each.payload for each in frames.stray_frames(data, 1, len(one) + len(two))]

    assert read == [b"\0", b"\1"]
    assert strays == [b"\2"], "a frame begins at a multiple of eight"
    assert [each.payload for each in frames.frames(data, 1, len(one))] == [b"\1"]


CHECKPOINT = Checkpoint(5, 123, 456, 111, {NEW: LaneState(1, 50), 60: LaneState(2, 60)}, (7, 8, 9))


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    data = CHECKPOINT.encode()

    head = pack("<IQQQQII", 2, 5, 123, 456, 111, 3, 0)
    lanes = pack("<IIQ", NEW, 1, 50) + pack("<IIQ", 60, 2, 60)
    body = head + lanes + pack("<3Q", 7, 8, 9)
    assert data == b"PRcheck1" + pack("<I", checksum(body)) + body
    assert slots.decode(data) == CHECKPOINT
    assert slots.decode(data + bytes(100)) == CHECKPOINT
    assert slots.decode(data[:-1]) is None
    assert slots.decode(b"") is None
    for at in (0, 8, 12, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 1
        assert slots.decode(bytes(damaged)) is None


def test_checkpoints_alternate_and_the_later_one_counts() -> None:
    file = opened(LossyFiles())
    with pytest.raises(StoreDamaged):
        slots.read_checkpoint(file)

    for number in (5, 6, 7):
        later = replace(CHECKPOINT, number=number)
        slots.write_checkpoint(file, later)
        assert slots.read_checkpoint(file) == later

    assert slots.decode(file.pread(0, SLOT_BYTES)) == replace(CHECKPOINT, number=6)
    assert slots.decode(file.pread(SLOT_BYTES, SLOT_BYTES)) == replace(CHECKPOINT, number=7)
    file.pwrite(SLOT_BYTES, b"x")
    assert slots.read_checkpoint(file).number == 6
    assert SLOT_BYTES == MIB


def test_a_checkpoint_of_too_many_leases_is_refused() -> None:
    file = opened(LossyFiles())
    room = (SLOT_BYTES - len(replace(CHECKPOINT, working=()).encode())) // 8

    slots.write_checkpoint(file, replace(CHECKPOINT, working=tuple(range(room))))
    with pytest.raises(StoreFailed, match="too many"):
        slots.write_checkpoint(file, replace(CHECKPOINT, working=tuple(range(room + 1))))


def test_batches_are_written_where_they_belong_and_the_last_is_synced() -> None:
    segment = Segment.planned(HEADER)
    file = noting(segment)

    batches.write(
        LossyFiles(), LAYOUT, [Batch(segment, 4112, [b"a", b"b"]), Batch(segment, 5000)], segment
    )
    batches.write(LossyFiles(), LAYOUT, [Batch(segment, 4120, [b"c"])], None)

    assert file.did == [(4112, b"ab"), ("sync",), (4120, b"c")]


def test_the_earlier_segment_is_synced_before_a_new_one_is_made() -> None:
    files = LossyFiles()
    files.make_directory(ROOT)
    files.make_directory(LAYOUT.log)
    earlier, new = Segment.planned(HEADER), Segment.planned(HEADER._replace(sequence=8))
    before = noting(earlier)

    batches.write(files, LAYOUT, [Batch(new, 4112, [b"frame"], earlier)], None)

    assert before.did == [("sync",)]
    assert new.file is not None
    assert new.read(0, 64) == new.header.encode()
    assert new.read(4112, 5) == b"frame"
    assert new.garbage_flags() == bytes(16)


def test_a_frame_under_way_is_found_in_its_batch() -> None:
    one, other = Segment.planned(HEADER), Segment.planned(HEADER)
    under_way = [Batch(one, 4112, [b"four", b"five."]), Batch(other, 4112, [b"x"])]

    assert batches.part_at(under_way, one, 4112) == b"four"
    assert batches.part_at(under_way, one, 4116) == b"five."
    assert batches.part_at(under_way, other, 4112) == b"x"
    assert batches.part_at(under_way, one, 4111) is None
    assert batches.part_at(under_way, one, 4113) is None
    assert batches.part_at(under_way, one, 4121) is None
