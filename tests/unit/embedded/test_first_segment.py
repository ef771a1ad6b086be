"""What segments of lane `new` are before they hold a record: filled, and the first one small."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from contract.queue_harness import plain_mail
from crash.lossy import Disk, LossyFiles, Sync, Write
from crash.world import OPTIONS, ROOT, opened, start
from postroad.embedded.log import segments
from postroad.embedded.log.lanes import FIRST_BYTES
from postroad.embedded.log.layout import NEW
from postroad.embedded.log.options import MIB
from postroad.embedded.log.segments import HEADER_BLOCK
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import StoreFull
from postroad.ports.files import File

USUAL = replace(OPTIONS, segment_bytes=2 * MIB, segment_envelopes=64)
LARGE = {"x": "y" * (MIB // 3)}
HOUR = timedelta(hours=1)


async def fill(queue: OwnedQueue, count: int) -> None:
    """Queue mails of which three do not fit into a first segment."""
    for _ in range(count):
        await queue.enqueue(replace(plain_mail(), attributes=LARGE))


def sizes(queue: OwnedQueue) -> list[int]:
    return [segment.header.limit for segment in queue.engine.lane(NEW).segments]


def synced_before_the_first_record(files: LossyFiles, name: str, marks: int) -> int:
    """Return how long a segment was, and durably so, when its first record was written."""
    inode = files.disk.names[ROOT / "log"][name]
    length = durable = 0
    for step in files.journal.steps:
        if isinstance(step, Write) and step.inode == inode:
            if step.offset >= HEADER_BLOCK + marks and any(step.data):
                return durable
            length = max(length, step.offset + len(step.data))
        elif isinstance(step, Sync) and step.inode == inode:
            durable = length
    raise AssertionError(f"no record was written to {name}")


async def test_the_first_is_small_and_the_next_has_the_usual_size() -> None:
    files = LossyFiles()
    queue = await start(files, options=USUAL)
    await fill(queue, 4)
    await queue.close()

    assert sizes(queue) == [FIRST_BYTES, USUAL.segment_bytes]
    for number, size in enumerate(sizes(queue), start=1):
        name = f"new.{number:010}"
        assert synced_before_the_first_record(files, name, USUAL.segment_envelopes) == size


async def test_each_process_begins_with_a_small_one() -> None:
    files = LossyFiles()
    queue = await start(files, options=USUAL)
    await fill(queue, 4)
    await queue.close()

    async with opened(files.disk, seed=1, options=USUAL) as (files, queue):
        await fill(queue, 1)

        assert sizes(queue)[2:] == [FIRST_BYTES]
        filled = synced_before_the_first_record(files, "new.0000000003", USUAL.segment_envelopes)
        assert filled == FIRST_BYTES


async def test_segments_that_are_smaller_stay_so() -> None:
    files = LossyFiles()
    queue = await start(files)
    for _ in range(3 * OPTIONS.segment_envelopes):
        await queue.enqueue(plain_mail())
    assert (await queue.size()).size == 3 * OPTIONS.segment_envelopes
    await queue.close()

    assert len(sizes(queue)) > 2
    assert set(sizes(queue)) == {OPTIONS.segment_bytes}
    name = "new.0000000001"
    assert (
        synced_before_the_first_record(files, name, OPTIONS.segment_envelopes)
        == OPTIONS.segment_bytes
    )
    async with opened(files.disk, seed=1) as (_, again):
        assert (await again.size()).size == 3 * OPTIONS.segment_envelopes


async def test_a_record_that_is_larger_than_the_first_gets_the_room_it_needs() -> None:
    files = LossyFiles()
    queue = await start(files, options=USUAL)
    await queue.enqueue(replace(plain_mail(), attributes={"x": "y" * (MIB + 1)}))
    await queue.close()

    (size,) = sizes(queue)
    assert FIRST_BYTES < size < USUAL.segment_bytes


async def test_other_lanes_are_not_filled() -> None:
    """They are written by flights that no client waits for."""
    files = LossyFiles()
    queue = await start(files, options=USUAL)
    await queue.enqueue(plain_mail(), HOUR)
    await queue.close()

    marks = HEADER_BLOCK + USUAL.segment_envelopes
    assert (
        synced_before_the_first_record(files, "3600s.0000000001", USUAL.segment_envelopes) == marks
    )


async def test_they_double_up_to_the_usual_size() -> None:
    """Filling a large one takes a while: it is paid for by many records."""
    files = LossyFiles()
    queue = await start(files, options=replace(USUAL, segment_bytes=5 * MIB))
    await fill(queue, 40)
    await queue.close()

    assert sizes(queue)[:5] == [MIB, 2 * MIB, 4 * MIB, 5 * MIB, 5 * MIB]


@pytest.mark.parametrize("left", [b"", b"PRlog001, and no more", bytes(2 * FIRST_BYTES)])
async def test_a_file_whose_header_did_not_reach_the_disk_is_taken(left: bytes) -> None:
    async with opened(Disk(), options=USUAL) as (files, queue):
        await fill(queue, 1)
    file = files.open(ROOT / "log" / "new.0000000002", create=True)
    file.append(left)
    file.close()

    async with opened(files.disk, seed=1, options=USUAL) as (_, queue):
        await fill(queue, 1)
        assert [each.sequence for each in queue.engine.lane(NEW).segments] == [1, 2]

    async with opened(files.disk, seed=2, options=USUAL) as (_, again):
        assert (await again.size()).size == 2


async def test_a_disk_that_is_too_full_for_zeros_still_takes_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise nothing could be delivered or removed any more, and the disk would stay full."""

    def partly(file: File, length: int) -> None:
        file.pwrite(0, bytes(length // 2))
        raise StoreFull("no space is left")

    files = LossyFiles()
    monkeypatch.setattr(segments, "fill_with_zeros", partly)
    queue = await start(files, options=USUAL)
    await fill(queue, 4)
    (first, _) = queue.engine.lane(NEW).segments
    assert first.opened().size() == first.end
    await queue.close()

    async with opened(files.disk, seed=1, options=USUAL) as (_, again):
        assert (await again.size()).size == 4
