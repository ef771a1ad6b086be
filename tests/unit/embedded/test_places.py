"""Files with places for several mails: where a mail lies, how files grow, and when they go."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pytest

from crash.lossy import LossyFiles, Write
from crash.world import Inline
from postroad import Mail, open_queue
from postroad.embedded.log.layout import (
    FILES_PER_DIRECTORY,
    MAX_PACK_BYTES,
    OWN_FILE,
    PLACE_SIZES,
    Layout,
    file_of,
    first_slot,
    kind_for,
    kind_of,
    offset_of,
    places_of,
    slots_of,
)
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.log.slots import GROWTH_BYTES, KEPT, ROUNDS, Slots, slots_on_disk
from postroad.embedded.log.spool_files import HEADER_BYTES, NewMail, SpoolFiles
from postroad.errors import StoreFull
from unit.embedded.test_slots import RefusingFiles

ROOT = PurePosixPath("/store")
LAYOUT = Layout(ROOT, ROOT / "mail")
KINDS = range(1, len(PLACE_SIZES))
KIND = kind_for(2300)


def slots_over(files: LossyFiles, **options: int) -> Slots:
    chosen = StoreOptions(free_wait=timedelta(0), **options)  # type: ignore[arg-type]
    return Slots(files, LAYOUT, chosen, Inline(), SpoolFiles(files, LAYOUT), 0)


async def cleaned(slots: Slots) -> None:
    while slots._cleaning is not None:
        await asyncio.sleep(0)


def test_the_sizes_of_places() -> None:
    assert PLACE_SIZES[:9] == (0, 256, 320, 384, 448, 512, 640, 768, 896)
    assert PLACE_SIZES[-2:] == (57344, 65536)
    assert all(4 * later <= 5 * size for size, later in pairwise(PLACE_SIZES[1:]))


@pytest.mark.parametrize(
    ("octets", "size"), [(1, 256), (256, 256), (257, 320), (2300, 2560), (65536, 65536)]
)
def test_a_mail_gets_the_smallest_place_that_it_fits(octets: int, size: int) -> None:
    assert PLACE_SIZES[kind_for(octets)] == size


def test_a_larger_mail_has_a_file_of_its_own() -> None:
    assert kind_for(65537) == OWN_FILE
    assert places_of(OWN_FILE) == 1


@pytest.mark.parametrize("kind", [OWN_FILE, *KINDS])
@pytest.mark.parametrize("number", [0, 12_034, 10**9])
def test_a_slot_has_a_file_and_a_place_that_no_other_slot_has(kind: int, number: int) -> None:
    first, count = first_slot(kind, number), places_of(kind)
    path = LAYOUT.spool_file(first)

    assert path.parent.name == f"{number // FILES_PER_DIRECTORY:06}"
    assert path.name[:3] == f"{number % FILES_PER_DIRECTORY:03}"
    assert slots_of(path.parent.name, path.name) == range(first, first + count)
    for place, slot in enumerate(range(first, first + count)):
        assert LAYOUT.spool_file(slot) == path
        assert (kind_of(slot), file_of(slot)) == (kind, first)
        assert offset_of(slot) == place * PLACE_SIZES[kind]
    assert first_slot(kind, number) + count <= first_slot(kind, number + 1)
    assert first < 2**53, "JSON has it exactly"
    assert count * PLACE_SIZES[kind] <= MAX_PACK_BYTES


@pytest.mark.parametrize("name", ["incoming", "345.damaged", "345.2561", "345.0", "x45.2560"])
def test_other_names_are_no_spool_files(name: str) -> None:
    assert not slots_of("000012", name)
    assert not slots_of("incoming", "345")


async def test_places_are_used_in_their_order_and_the_lowest_free_one_again() -> None:
    slots = slots_over(RefusingFiles())
    taken = [await slots.take(KIND) for _ in range(places_of(KIND) + 10)]
    first, second = first_slot(KIND, 0), first_slot(KIND, 1)
    assert taken == [*range(first, first + places_of(KIND)), *range(second, second + 10)]

    slots.adopt([taken[-1], taken[7]])

    assert await slots.take(KIND) == taken[7], "so that later files become free"


async def test_a_file_grows_by_a_part_and_its_directory_is_synced_once() -> None:
    files = RefusingFiles()
    slots = slots_over(files)
    count = places_of(KIND)

    for _ in range(count):
        await slots.take(KIND)

    path = LAYOUT.spool_file(first_slot(KIND, 0))
    assert [each for each in files.did if each[0] == "sync"] == [
        ("sync", LAYOUT.mail), ("sync", path.parent)
    ]  # fmt: skip
    assert files.names(path.parent) == [path.name]
    assert len(slots) == 0
    assert GROWTH_BYTES // PLACE_SIZES[KIND] < count // 4
    await slots.take(KIND)
    assert len(files.names(path.parent)) == 2


async def test_a_file_that_cannot_grow_now_grows_later() -> None:
    files = RefusingFiles()
    slots = slots_over(files)
    for _ in range(GROWTH_BYTES // PLACE_SIZES[KIND]):
        await slots.take(KIND)
    files.fail = dict.fromkeys(range(files.calls, files.calls + 9), StoreFull("no space"))

    with pytest.raises(StoreFull):
        await slots.take(KIND)
    files.fail = {}

    assert await slots.take(KIND) == first_slot(KIND, 0) + GROWTH_BYTES // PLACE_SIZES[KIND]


async def test_a_file_goes_when_none_of_its_mails_is_left() -> None:
    files = RefusingFiles()
    slots = slots_over(files, pool_files=places_of(KIND))
    taken = [await slots.take(KIND) for _ in range(3 * places_of(KIND))]
    stays = taken[300]

    for slot in taken:
        if slot != stays:
            slots.release(slot)
    await cleaned(slots)

    left = {file_of(each) for each in slots_on_disk(files, LAYOUT, 1)}
    assert left == {file_of(stays), file_of(taken[-1])}, "the first that was free went"
    slots.release(stays)
    await cleaned(slots)
    assert len(slots) == places_of(KIND), "so many stay"
    assert {file_of(each) for each in slots_on_disk(files, LAYOUT, 1)} == {file_of(stays)}


async def test_files_of_each_kind_shrink_to_the_recent_need() -> None:
    files = RefusingFiles()
    slots = slots_over(files)
    taken = [await slots.take(kind) for kind in (KIND, KIND + 1) for _ in range(2048)]
    slots.adopt(taken)
    for _ in range(15 * ROUNDS):
        await slots.shrink()

    left = dict.fromkeys((KIND, KIND + 1), 0)
    for slot in slots_on_disk(files, LAYOUT, 1):
        left[kind_of(slot)] += 1
    assert all(KEPT < count <= KEPT + 2 * 256 for count in left.values()), left


async def test_a_file_of_places_without_a_mail_is_room_on_a_full_disk() -> None:
    files = RefusingFiles()
    slots = slots_over(files)
    taken = [await slots.take(KIND) for _ in range(places_of(KIND))]
    slots.adopt(taken[1:])
    found = [slots.has_surplus, await slots.empty()]
    slots.adopt(taken[:1])
    found += [slots.has_surplus, await slots.empty()]

    assert found == [False, False, True, True]
    assert slots_on_disk(files, LAYOUT, 1) == []
    assert await slots.take(KIND) == first_slot(KIND, 1), "no number of a file is used twice"


def test_a_mail_is_written_within_its_place() -> None:
    files = LossyFiles()
    files.make_directory(LAYOUT.spool_directory(0))
    store, first = SpoolFiles(files, LAYOUT), first_slot(KIND, 0)
    store.make(first, MAX_PACK_BYTES)
    content = bytes(PLACE_SIZES[KIND] - HEADER_BYTES - 2)
    mails = [NewMail(first + each, bytes([each] * 16), content, b"{}", 1) for each in range(3)]

    store.store(*mails)
    store.free(first + 1)

    writes = [step for step in files.journal.steps if isinstance(step, Write)]
    for step in writes:
        place, at = divmod(step.offset, PLACE_SIZES[KIND])
        assert place < 3
        assert at + len(step.data) <= PLACE_SIZES[KIND]
    assert store.verify(first + 1) is None
    for each in (0, 2):
        assert store.read(first + each, bytes([each] * 16))[0] == content
        kept = store.at_hand(first + each, bytes([each] * 16), len(content))
        assert kept is not None
        assert kept[0] == content


@pytest.mark.parametrize("octets", [400, 1000, 2048, 5000, 20_000, 60_000])
async def test_a_waiting_mail_takes_little_more_space_than_it_has_octets(
    octets: int, tmp_path: Path
) -> None:
    """All of the directory counts: the log and the checkpoint too."""
    count = 2**22 // octets

    async with open_queue(f"embedded://{tmp_path}/queue", create=True) as queue:
        await queue.enqueue_all(
            Mail("a@example.org", ["b@example.net"], bytes(octets)) for _ in range(count)
        )
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    for each in files:
        with each.open("rb") as file:
            os.fsync(file.fileno())  # else its blocks are not all allocated
    used = sum(each.stat().st_blocks for each in files) * 512

    assert used / count <= 1.5 * octets + 512
