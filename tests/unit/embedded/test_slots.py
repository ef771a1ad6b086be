"""The pool of spool files: what a refusal while it grows leaves behind."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import PurePath, PurePosixPath

import pytest

from contract.blobs_contract import broken_off
from contract.queue_harness import letter
from crash.lossy import LossyFiles
from crash.world import OPTIONS, Inline, start
from postroad.embedded.layout import SLOTS_PER_DIRECTORY, Layout
from postroad.embedded.options import StoreOptions
from postroad.embedded.slots import BATCH, KEPT, ROUNDS, Slots, slots_on_disk
from postroad.embedded.spool_files import SpoolFiles
from postroad.errors import StoreFailed, StoreFull

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

    for _ in range(SLOTS_PER_DIRECTORY + BATCH):
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
    await queue.enqueue(letter())
    free = len(queue.engine.slots)

    with pytest.raises(ConnectionResetError):
        await queue.enqueue(replace(letter(), content=broken_off(b"x")))
    await queue.close()

    assert len(queue.engine.slots) == free


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
