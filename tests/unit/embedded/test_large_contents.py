"""Large contents are read from their files in pieces; no file stays open behind a reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar, cast

import pytest

from contract.queue_harness import plain_mail
from crash.lossy import Disk, LossyFiles
from crash.world import OPTIONS, opened
from postroad.embedded.log.spool_files import CHUNK, HEADER_BYTES
from postroad.embedded.store.items import SpoolItem
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import BlobMissing, StoreFull
from postroad.ports.files import DiskSpace

T = TypeVar("T")
LARGE = b"Subject: large\r\n\r\n" + bytes(CHUNK)


async def leased(queue: OwnedQueue) -> SpoolItem:
    await queue.enqueue(plain_mail(content=LARGE))
    return await queue.consumer(1).next()


def spoil(files: LossyFiles, queue: OwnedQueue, offset: int) -> None:
    """Change a byte of the mail's file."""
    (entry,) = queue.engine.working
    file = files.open(queue.engine.layout.spool_file(entry.slot))
    file.pwrite(offset, b"?")
    file.close()


async def test_the_file_is_closed_behind_what_was_read() -> None:
    async with opened(Disk()) as (files, queue):
        item = await leased(queue)
        before = files.open_files

        assert await item.shape() is not None
        assert item.at_hand() is None, "its header is read, and no content kept"
        assert files.open_files == before
        assert b"".join([chunk async for chunk in item.stream()]) == LARGE
        assert files.open_files == before


async def test_the_file_is_closed_as_its_reader_breaks_off() -> None:
    async with opened(Disk()) as (files, queue):
        item = await leased(queue)
        before = files.open_files

        async with aclosing(cast("AsyncGenerator[bytes, None]", item.stream())) as chunks:
            assert len(await anext(chunks)) == CHUNK
            assert files.open_files == before + 1

        assert files.open_files == before


class HeldThreads:
    """Threads whose calls return when the test lets them."""

    def __init__(self) -> None:
        self.returning = asyncio.Event()

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        try:
            return work(*arguments)
        finally:
            await self.returning.wait()

    async def close(self) -> None:
        """No call is under way."""


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("read", [lambda item: anext(item.stream()), SpoolItem.shape])
async def test_the_file_is_closed_whose_reader_is_cancelled_before_it_is_open(
    read: Callable[[SpoolItem], Coroutine[None, None, object]], is_damaged: bool
) -> None:
    async with opened(Disk()) as (files, queue):
        item = await leased(queue)
        if is_damaged:
            spoil(files, queue, 20)
        before = files.open_files
        threads = queue.engine.mail_threads = HeldThreads()
        reader = asyncio.ensure_future(read(item))
        await settle()
        assert files.open_files == before + (not is_damaged)

        reader.cancel()
        await settle()
        threads.returning.set()
        await settle()

        assert reader.cancelled()
        assert files.open_files == before


@pytest.mark.parametrize("offset", [20, HEADER_BYTES], ids=["header", "content"])
async def test_the_file_is_closed_that_turns_out_to_be_damaged(offset: int) -> None:
    async with opened(Disk()) as (files, queue):
        item = await leased(queue)
        spoil(files, queue, offset)
        before = files.open_files

        with pytest.raises(BlobMissing):
            _ = [chunk async for chunk in item.stream()]

        assert files.open_files == before + 1, "the segment of the dead letter"
        assert [view.reason async for view in queue.dead_letters()] == [
            "the bytes of the mail are missing or damaged"
        ]


def octets_in_mail(files: LossyFiles, queue: OwnedQueue) -> int:
    """Return how large the spool files are together."""
    mail, total = queue.engine.layout.mail, 0
    for directory in filter(str.isdecimal, files.names(mail)):
        for name in files.names(mail / directory):
            file = files.open(mail / directory / name)
            total += file.size()
            file.close()
    return total


@pytest.mark.parametrize("cause", ["too little free", "no space left"])
async def test_what_was_stored_of_a_mail_without_room_is_room_again(cause: str) -> None:
    async with opened(Disk()) as (files, queue):
        await queue.enqueue(plain_mail(content=LARGE))
        before = octets_in_mail(files, queue)

        async def content() -> AsyncIterator[bytes]:
            for _ in range(4):
                yield bytes(CHUNK)
            if cause == "too little free":
                files.free = DiskSpace(1, None)
                queue.engine.limits.renew()
            else:
                files.fail = {files.calls + 1: StoreFull("no space is left")}
            yield bytes(CHUNK)

        with pytest.raises(StoreFull):
            await queue.enqueue(plain_mail(content=content()))
        await settle()

        assert octets_in_mail(files, queue) <= before


async def test_the_file_is_closed_whose_writer_is_cancelled_before_it_is_open() -> None:
    async with opened(Disk(), options=replace(OPTIONS, pool_files=100)) as (files, queue):
        await queue.enqueue(plain_mail(content=LARGE))
        before, slots = files.open_files, len(queue.engine.slots)

        async def content() -> AsyncIterator[bytes]:
            yield LARGE

        honest = queue.engine.mail_threads
        threads = queue.engine.mail_threads = HeldThreads()
        writer = asyncio.ensure_future(queue.enqueue(plain_mail(content=content())))
        await settle()
        writer.cancel()
        await settle()
        queue.engine.mail_threads = honest
        threads.returning.set()
        await settle()

        assert writer.cancelled()
        assert len(queue.engine.slots) == slots
        assert files.open_files == before
