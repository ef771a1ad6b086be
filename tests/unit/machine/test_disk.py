"""A disk that keeps what was flushed, and loses of the rest what it will."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from machine.disk import ANSWERS, ASKS, BLOCK, FLUSH, READ, REPLY, REQUEST, WRITE, Disk

OLD, NEW = b"o" * BLOCK, b"n" * BLOCK
BLOCKS = 64
FUA = 1


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    (tmp_path / "disk").write_bytes(OLD * BLOCKS)
    disk = Disk(tmp_path / "disk", random.Random(1))
    yield disk
    disk.close()


def new_blocks(disk: Disk) -> int:
    return sum(disk.read(number * BLOCK, BLOCK) == NEW for number in range(BLOCKS))


async def test_what_was_written_is_read_before_it_is_stable(disk: Disk) -> None:
    disk.write(BLOCK, NEW)

    assert disk.read(0, 3 * BLOCK) == OLD + NEW + OLD


async def test_a_cut_keeps_what_was_flushed(disk: Disk) -> None:
    disk.write(0, NEW * BLOCKS)
    disk.flush()

    disk.cut(drops=True)

    assert new_blocks(disk) == BLOCKS


async def test_a_cut_drops_some_of_what_was_not(disk: Disk) -> None:
    disk.write(0, NEW * BLOCKS)

    disk.cut(drops=True)

    assert 0 < new_blocks(disk) < BLOCKS
    assert new_blocks(disk) == BLOCKS - disk.dropped


async def test_a_disk_that_keeps_its_cache_keeps_all(disk: Disk) -> None:
    disk.write(0, NEW * BLOCKS)

    disk.cut(drops=False)

    assert new_blocks(disk) == BLOCKS


async def asked(disk: Disk, *requests: tuple[int, int, int, bytes]) -> list[bytes]:
    """Send requests (kind, flags, offset, content or length) as the kernel does; return answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", await disk.serve("127.0.0.1"))
    answers = []
    for kind, flags, offset, content in requests:
        length = BLOCK if kind == READ else len(content)
        writer.write(REQUEST.pack(ASKS, flags, kind, 7, offset, length) + content)
        magic, error, handle = REPLY.unpack(await reader.readexactly(REPLY.size))
        assert (magic, error, handle) == (ANSWERS, 0, 7)
        answers.append(await reader.readexactly(BLOCK) if kind == READ else b"")
    disk.cut(drops=True)
    assert await reader.read() == b""
    writer.close()
    return answers


async def test_a_client_reads_writes_and_flushes(disk: Disk) -> None:
    writes = [(WRITE, 0, number * BLOCK, NEW) for number in range(BLOCKS)]

    answers = await asked(disk, *writes, (READ, 0, BLOCK, b""), (FLUSH, 0, 0, b""))

    assert answers[-2] == NEW
    assert (new_blocks(disk), disk.flushes) == (BLOCKS, 1)


async def test_the_power_goes_at_a_request_which_is_not_answered(disk: Disk) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", await disk.serve("127.0.0.1"))
    disk.fail_after(3)
    for kind, content in ((WRITE, NEW), (READ, b""), (WRITE, NEW), (FLUSH, b"")):
        length = BLOCK if kind == READ else len(content)
        writer.write(REQUEST.pack(ASKS, 0, kind, 7, 0, length) + content)

    await disk.failed.wait()
    disk.cut(drops=False)

    assert len(await reader.read()) == 3 * REPLY.size + BLOCK  # the flush has no answer
    assert disk.flushes == 0
    writer.close()


async def test_a_forced_write_is_stable_by_itself_only(disk: Disk) -> None:
    writes = [(WRITE, 0, number * BLOCK, NEW) for number in range(1, BLOCKS)]

    await asked(disk, *writes, (WRITE, FUA, 0, NEW))

    assert disk.read(0, BLOCK) == NEW
    assert new_blocks(disk) < BLOCKS
