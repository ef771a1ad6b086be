"""Which ENVELOPEs are read from the log: those of mails that came long ago, or before a start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from contract.queue_harness import plain_mail
from crash.lossy import LossyFiles
from crash.world import Inline, opened, start
from postroad.domain.mail.envelope_documents import envelope_value
from postroad.domain.values.text import to_json
from postroad.embedded.log.envelopes import decode_envelope, encode_new
from postroad.embedded.log.frames import encode, frame_size
from postroad.embedded.log.lanes import LaneLog
from postroad.embedded.log.layout import NEW, Lane
from postroad.embedded.log.records import ENVELOPE
from postroad.embedded.log.segments import LiveEntry
from postroad.embedded.store import engine as store_engine
from postroad.embedded.store.engine import BLOCK, EnvelopeReader
from postroad.errors import StoreDamaged


async def test_recent_mail_is_listed_without_a_read_of_the_log() -> None:
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    for number in range(3):
        await queue.enqueue(plain_mail(f"mail{number}"))

    assert len([each async for each in queue.browse()]) == 3
    assert queue.engine.reader.bytes_read == 0
    await queue.close()

    async with opened(files.disk) as (_, again):
        assert len([each async for each in again.browse()]) == 3
        assert again.engine.reader.bytes_read > 0


DOCUMENT = to_json(envelope_value(plain_mail().envelope))
PAYLOAD = encode_new(bytes(16), 1, 0, 3, "example.net", DOCUMENT)
SIZE = frame_size(len(PAYLOAD))


class FakeSegment:
    """A segment of which a test counts the reads."""

    lane, sequence, seed = NEW, 1, 77

    def __init__(self, data: bytes, written: int | None = None) -> None:
        self.data = data
        self.written = len(data) if written is None else written
        self.reads: list[int] = []

    def read(self, offset: int, length: int) -> bytes:
        self.reads.append(offset // BLOCK)
        return self.data[offset : offset + length]

    def damaged(self, offset: int) -> StoreDamaged:
        return StoreDamaged(f"at {offset}")


class Memory:
    """What a lane has in memory."""

    def __init__(self) -> None:
        self.recent: dict[int, bytes] = {}
        self.unwritten: dict[int, bytes] = {}

    def recall(self, where: int) -> bytes | None:
        return self.recent.get(where)

    def pending(self, segment: FakeSegment, offset: int) -> bytes | None:
        return self.unwritten.get(offset)


def reader_of(memory: Memory) -> EnvelopeReader:
    return EnvelopeReader(cast("dict[Lane, LaneLog]", {NEW: memory}), Inline())


def entry_at(segment: FakeSegment, offset: int) -> LiveEntry:
    return cast(
        "LiveEntry",
        SimpleNamespace(segment=segment, offset=offset, position=offset, length=len(PAYLOAD)),
    )


def with_frame(offset: int, blocks: int, written: int | None = None) -> FakeSegment:
    """Return a segment with one ENVELOPE at an offset."""
    frame = encode(FakeSegment.seed, ENVELOPE, 0, 0, PAYLOAD)
    data = bytes(offset) + frame
    return FakeSegment(data + bytes(blocks * BLOCK - len(data)), written)


async def test_what_is_in_memory_is_not_read() -> None:
    segment, memory = with_frame(0, 1), Memory()
    memory.recent[0] = PAYLOAD
    memory.unwritten[8] = encode(segment.seed, ENVELOPE, 0, 0, PAYLOAD)
    reader = reader_of(memory)

    found = [await reader.read(entry_at(segment, offset)) for offset in (0, 8)]

    assert found == [decode_envelope(PAYLOAD)] * 2
    assert segment.reads == []


async def test_a_block_is_read_once_when_no_more_can_come_into_it() -> None:
    reader = reader_of(Memory())
    whole, growing = with_frame(0, 2), with_frame(0, 1, written=BLOCK - 1)
    growing.sequence = 2

    for _ in range(2):
        assert await reader.read(entry_at(whole, 0)) == decode_envelope(PAYLOAD)
        assert await reader.read(entry_at(growing, 0)) == decode_envelope(PAYLOAD)

    assert whole.reads == [0]
    assert growing.reads == [0, 0]
    assert reader.bytes_read == 3 * BLOCK


class FilledSegment(FakeSegment):
    """A segment whose block a flush fills while it is read."""

    def read(self, offset: int, length: int) -> bytes:
        data = super().read(offset, length)
        self.written = BLOCK
        return data


async def test_a_block_that_a_flush_fills_during_its_read_is_read_again() -> None:
    reader, segment = reader_of(Memory()), FilledSegment(with_frame(0, 1).data, BLOCK - 1)

    for _ in range(3):
        await reader.read(entry_at(segment, 0))

    assert segment.reads == [0, 0]


@pytest.mark.parametrize(
    ("offset", "blocks"), [(BLOCK - SIZE, [0]), (BLOCK - SIZE + 8, [0, 1]), (BLOCK, [1])]
)
async def test_a_record_is_read_with_all_its_blocks(offset: int, blocks: list[int]) -> None:
    segment = with_frame(offset, 3)

    found = await reader_of(Memory()).read(entry_at(segment, offset))

    assert found == decode_envelope(PAYLOAD)
    assert segment.reads == blocks


async def test_the_blocks_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_engine, "BLOCKS_KEPT", 2)
    frame = encode(FakeSegment.seed, ENVELOPE, 0, 0, PAYLOAD)
    segment = FakeSegment((frame + bytes(BLOCK - len(frame))) * 3)
    reader = reader_of(Memory())

    for number in (0, 1, 0, 2, 0, 1):
        await reader.read(entry_at(segment, number * BLOCK))

    assert segment.reads == [0, 1, 2, 1]


async def test_a_place_without_its_record_is_damage() -> None:
    segment = with_frame(0, 1)

    with pytest.raises(StoreDamaged, match="at 8"):
        await reader_of(Memory()).read(entry_at(segment, 8))
