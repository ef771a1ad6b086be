"""The pool of spool files: what a refusal while it grows leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import PurePath, PurePosixPath
from typing import Any, TypeVar

import pytest

from contract.blobs_contract import broken_off
from contract.queue_harness import plain_mail
from crash.lossy import LossyFiles
from crash.world import OPTIONS, Inline, start
from postroad.embedded.log.layout import FILES_PER_DIRECTORY, Layout
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.log.slots import (
    BATCH,
    KEPT,
    ROUNDS,
    Slots,
    first_unused_directory,
    slots_on_disk,
)
from postroad.embedded.log.spool_files import HEADER_BYTES, NewMail, SpoolFiles
from postroad.embedded.opening import describe
from postroad.errors import StoreFailed, StoreFull
from postroad.ports.files import DiskSpace

Result = TypeVar("Result")
ROOT = PurePosixPath("/store")
LAYOUT = Layout(ROOT, ROOT / "mail")


class RefusingFiles(LossyFiles):
    """Refuses chosen calls, once each, and notes the changes of directories."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[tuple[str, PurePath], StoreFailed | StoreFull] = {}
        self.did: list[tuple[str, PurePath]] = []

    def make_directory(self, path: PurePath) -> None:
        self._note("make", path)
        super().make_directory(path)

    def sync_directory(self, path: PurePath) -> None:
        self._note("sync", path)
        super().sync_directory(path)

    def _note(self, what: str, path: PurePath) -> None:
        if (error := self.refused.pop((what, path), None)) is not None:
            raise error
        self.did.append((what, path))


def slots_on(files: RefusingFiles) -> Slots:
    return Slots(files, LAYOUT, StoreOptions(), Inline(), SpoolFiles(files, LAYOUT), 0)


@pytest.mark.parametrize("refused", [("make", LAYOUT.mail / "000000"), ("sync", LAYOUT.mail)])
async def test_a_directory_is_not_used_before_its_name_is_durable(
    refused: tuple[str, PurePath],
) -> None:
    files = RefusingFiles()
    slots = slots_on(files)
    files.refused[refused] = StoreFailed("Input/output error")

    with pytest.raises(StoreFailed):
        await slots.take()
    slot = await slots.take()

    directory = LAYOUT.spool_directory(slot)
    made = files.did.index(("make", directory))
    assert files.did.index(("sync", LAYOUT.mail), made) < files.did.index(("sync", directory))


async def test_a_directory_is_made_once_and_the_next_when_it_is_full() -> None:
    files = RefusingFiles()
    slots = slots_on(files)

    for _ in range(FILES_PER_DIRECTORY + BATCH):
        await slots.take()

    made = [path.name for what, path in files.did if what == "make"]
    assert made == ["000000", "000001"]


async def test_a_file_that_is_missing_costs_the_pool_no_other() -> None:
    files = RefusingFiles()
    contents = SpoolFiles(files, LAYOUT)
    slots = Slots(files, LAYOUT, StoreOptions(), Inline(), contents, 0)
    taken = [await slots.take() for _ in range(3)]
    left = len(slots)
    contents.close()
    contents.remove(taken[1])

    for slot in taken:
        slots.release(slot)
    await slots.close()

    assert len(slots) == left + 2


async def test_a_mail_whose_content_breaks_off_gives_its_slot_back() -> None:
    queue = await start(LossyFiles(), options=replace(OPTIONS, pool_files=2 * BATCH))
    await queue.maintenance.recovering
    slots = queue.engine.slots
    slots.adopt([await slots.take()])
    free = len(slots)

    with pytest.raises(ConnectionResetError):
        await queue.enqueue(replace(plain_mail(), content=broken_off(b"x")))
    await queue.close()

    assert len(slots) == free


async def test_files_that_recovery_found_beyond_the_pool_are_removed() -> None:
    files = RefusingFiles()
    options = StoreOptions(pool_files=3, free_wait=timedelta(0))
    slots = Slots(files, LAYOUT, options, Inline(), SpoolFiles(files, LAYOUT), 0)
    found = [await slots.take() for _ in range(BATCH)]

    slots.adopt(found)
    await slots.close()

    assert len(slots) == 3
    assert len(slots_on_disk(files, LAYOUT, 1)) == 3


async def test_the_pool_shrinks_once_for_each_so_many_rounds_without_need() -> None:
    slots = slots_on(RefusingFiles())
    slots.adopt([await slots.take() for _ in range(2 * KEPT)])
    sizes = [len(slots)]

    for _ in range(2 * ROUNDS + 1):  # in the first round all were needed
        await slots.shrink()
        sizes.append(len(slots))

    shrank = [number for number, (before, after) in enumerate(pairwise(sizes)) if after < before]
    assert shrank == [ROUNDS, 2 * ROUNDS]


async def test_the_pool_shrinks_by_half_of_what_no_round_needed_down_to_a_few() -> None:
    files = RefusingFiles()
    slots = slots_on(files)
    taken = [await slots.take() for _ in range(2 * KEPT)]
    slots.adopt(taken)
    await slots.shrink()  # the round in which all were needed
    sizes = []

    for _ in range(9):
        for _ in range(ROUNDS):
            await slots.shrink()
        sizes.append(len(slots))

    assert sizes == [120, 100, 90, 85, 82, 81, 80, 80, 80]
    assert len(slots_on_disk(files, LAYOUT, 1)) == KEPT
    left = [await slots.take() for _ in range(KEPT)]
    assert sorted(left) == sorted(slots_on_disk(files, LAYOUT, 1))


async def test_what_one_of_the_rounds_needed_stays() -> None:
    slots = slots_on(RefusingFiles())
    slots.adopt([await slots.take() for _ in range(2 * KEPT)])
    await slots.shrink()
    for number in range(ROUNDS):
        needed = await slots.lease(60 if number == 7 else 1)
        slots.adopt(needed)
        await slots.shrink()

    assert len(slots) == 2 * KEPT - (2 * KEPT - 60 - KEPT) // 2


async def test_a_receiver_gets_as_many_slots_as_are_free_and_one_at_least() -> None:
    slots = slots_on(RefusingFiles())

    first = await slots.lease(3)
    assert len(first) == 3
    rest = await slots.lease(10 * BATCH)
    assert len(rest) == BATCH - 3
    one_more = await slots.lease(1)

    assert len(one_more) == 1
    assert len(slots) == BATCH - 1
    assert len({*first, *rest, *one_more}) == BATCH + 1


@pytest.mark.parametrize(("size", "is_kept"), [(0, True), (1, False)])
async def test_the_file_of_a_large_mail_is_not_used_again(size: int, is_kept: bool) -> None:
    """It would keep its space for small ones."""
    files = RefusingFiles()
    options = StoreOptions(free_wait=timedelta(0), pool_file_bytes=64 * 1024)
    contents = SpoolFiles(files, LAYOUT)
    slots = Slots(files, LAYOUT, options, Inline(), contents, 0)
    slot = await slots.take()
    content = bytes(64 * 1024 - HEADER_BYTES - len(b"{}") + size)
    contents.store(NewMail(slot, bytes(16), content, b"{}", 0))

    slots.release(slot)
    await slots.close()

    assert (slot in slots_on_disk(files, LAYOUT, 1)) == is_kept
    assert len(slots) == BATCH - (not is_kept)


def test_a_process_makes_its_files_behind_all_directories() -> None:
    files = RefusingFiles()
    files.make_directory(LAYOUT.mail)
    assert first_unused_directory(files, LAYOUT) == 0
    for name in ("000000", "000041", "lost+found"):
        files.make_directory(LAYOUT.mail / name)

    assert first_unused_directory(files, LAYOUT) == 42
    assert slots_on_disk(files, LAYOUT, 41) == []


async def test_a_full_disk_takes_a_mail_in_the_room_of_free_spool_files() -> None:
    """Else a queue that has delivered all refuses mail until its pool has shrunk."""
    files = LossyFiles()
    queue = await start(files, options=replace(OPTIONS, least_free_bytes=1000))
    engine, least = queue.engine, 1000
    await engine.slots.take()

    def room(path: PurePath) -> DiskSpace:
        return DiskSpace(least - 1 if len(engine.slots) else 10**9, None)

    files.room = room  # type: ignore[method-assign]
    engine.limits.renew()
    assert len(engine.slots)
    assert queue.has_room(1000)
    assert await queue.enqueue(plain_mail())

    files.room = lambda path: DiskSpace(least - 1, None)  # type: ignore[method-assign]
    engine.limits.renew()
    with pytest.raises(StoreFull):
        await queue.enqueue(plain_mail())
    assert not queue.has_room(1000), "the pool is used up"
    await queue.close()


async def test_a_store_whose_directory_was_replaced_gets_no_new_spool_files() -> None:
    files = RefusingFiles()
    files.make_directory(LAYOUT.mail)
    files.make_directory(LAYOUT.log)
    slots = slots_on(files)
    asked = files.room

    def room(path: PurePath) -> DiskSpace:
        if path == LAYOUT.log:
            raise FileNotFoundError(path)
        return asked(path)

    files.room = room  # type: ignore[method-assign]

    with pytest.raises(StoreFailed, match="renamed, removed or replaced"):
        await slots.take()
    assert ("make", LAYOUT.mail / "000000") not in files.did


class Gated(Inline):
    """A thread that does its work when `free` is set."""

    def __init__(self) -> None:
        self.begun, self.free = asyncio.Event(), asyncio.Event()

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        self.begun.set()
        await self.free.wait()
        return await super().run(work, *arguments)


async def test_slots_that_are_freed_while_the_pool_is_emptied_are_in_the_pool() -> None:
    files, threads = RefusingFiles(), Gated()
    options = StoreOptions(free_wait=timedelta(0))
    slots = Slots(files, LAYOUT, options, threads, SpoolFiles(files, LAYOUT), 0)
    threads.free.set()
    taken = [await slots.take() for _ in range(3)]
    threads.free.clear()
    threads.begun.clear()

    for slot in taken:
        slots.release(slot)
    await threads.begun.wait()
    emptying = asyncio.ensure_future(slots.empty())
    await asyncio.sleep(0)
    threads.free.set()
    await emptying
    await slots.close()

    assert sorted(await slots.lease(BATCH)) == sorted(taken)
    assert sorted(slots_on_disk(files, LAYOUT, 1)) == sorted(taken)


@pytest.mark.parametrize("mail", [ROOT / "mail", PurePosixPath("/disk/mails")])
def test_a_new_store_has_durable_names_before_it_takes_mail(mail: PurePosixPath) -> None:
    files = RefusingFiles()

    describe(files, ROOT, StoreOptions(), create=True, mail=mail)

    synced = {path for what, path in files.did if what == "sync"}
    assert {ROOT, ROOT.parent, mail.parent} <= synced
