"""`rebuild`: who has a slot, what an interrupted one still knows, and disks that go bad."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import PurePath

import pytest

from crash.cuts import disks_after
from crash.lossy import Bytes, Disk, LossyFile, LossyFiles
from crash.world import OPTIONS, ROOT, Inline, Outside, opened, start
from postroad.embedded.log.layout import PLACE_SIZES, Layout, file_of, kind_of, offset_of
from postroad.embedded.log.spool_files import HEADER_BYTES, content_at
from postroad.embedded.offline_tools.log_salvage import PAGE
from postroad.embedded.offline_tools.rebuild import COMPLETE, Rebuilt, rebuild
from postroad.embedded.offline_tools.verification import verify
from postroad.embedded.opening import describe
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import StoreFailed, StoreFull
from support.memory.clock import ManualClock, SeededRandomness

HOUR = timedelta(hours=1)
LAYOUT = Layout(ROOT, ROOT / "mail")
QUARANTINE = LAYOUT.quarantine
HEIR = "mail0"
"""A mail that gets a place of the size that "ended" had."""

POOLED = replace(OPTIONS, pool_files=100)
"""Every file is used again."""


async def rebuilt(files: LossyFiles) -> Rebuilt:
    """Rebuild the store on a disk."""
    layout, options = describe(files, ROOT, OPTIONS, create=False)
    engine = Engine(
        files, layout, options, ManualClock(), SeededRandomness(5), Inline(), Inline()
    )  # fmt: skip
    try:
        return await rebuild(engine)
    finally:
        await engine.close()


def content(disk: Disk, path: PurePath) -> Bytes:
    return disk.inodes[disk.names[path.parent][path.name]]


def without_checkpoint(disk: Disk) -> Disk:
    """Return a copy of a disk on which the checkpoint is missing."""
    copy = disk.copy()
    del copy.names[ROOT][LAYOUT.checkpoint.name]
    return copy


Facts = dict[str, tuple[tuple[str, ...], bool, str | None]]


async def facts(queue: OwnedQueue) -> Facts:
    """Return who is left of each mail, whether it is held, and why it was given up."""
    views = [view async for view in queue.browse()] + [view async for view in queue.dead_letters()]
    found = {view.mail.name or "": (view.mail.recipients, view.held, view.reason) for view in views}
    assert len(found) == len(views)
    return found


async def facts_on(disk: Disk) -> Facts:
    async with opened(disk.copy()) as (_, queue):
        return await facts(queue)


async def slot_of(queue: OwnedQueue, name: str) -> int:
    """Return the slot of a mail that waits."""
    for entry in queue.engine.index.walk():
        if (await queue.engine.reader.read(entry)).envelope.name == name:
            return entry.slot
    raise AssertionError(f"{name} does not wait")


async def an_envelope_that_outlived_its_finish(files: LossyFiles, heir: str | None) -> int:
    """Make a store whose log still has the first ENVELOPE of "ended", for the sake of "stays", but
    not its FINISH. Its slot, which is returned, went to the mail `heir`, or is free."""
    queue = await start(files, options=POOLED)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("ended", delay=HOUR)
    await outside.enqueue("stays", delay=HOUR)
    slot = await slot_of(queue, "ended")
    await outside.change("flush", "ended")
    await outside.end("ended")
    await outside.forget()
    if heir is not None:
        free = queue.engine.slots._pools[kind_of(slot)]._free[file_of(slot)]
        free.append(free.pop(free.index(slot)))
        await outside.enqueue(heir)
        assert await slot_of(queue, heir) == slot
    await queue.maintenance.checkpoint()
    await queue.close()
    return slot


@pytest.mark.parametrize("heir", [HEIR, None])
async def test_a_mail_that_ended_takes_no_file_from_the_one_that_has_its_slot(
    heir: str | None,
) -> None:
    files = LossyFiles()
    await an_envelope_that_outlived_its_finish(files, heir)
    before = await facts_on(files.disk)
    files = LossyFiles(without_checkpoint(files.disk))

    found = await rebuilt(files)

    assert found.lost == []
    assert verify(files, LAYOUT).damage == []
    assert await facts_on(files.disk) == before


async def test_a_mail_that_ended_is_not_missed_when_its_file_was_removed() -> None:
    """As large ones are."""
    files = LossyFiles()
    slot = await an_envelope_that_outlived_its_finish(files, None)
    path = LAYOUT.spool_file(slot)
    disk = without_checkpoint(files.disk)
    del disk.names[path.parent][path.name]

    assert (await rebuilt(LossyFiles(disk))).lost == []


async def test_a_mail_that_waits_is_missed_when_its_file_is() -> None:
    async with opened(Disk()) as (files, queue):
        await Outside(files, queue).enqueue("waits", delay=HOUR)
        path = LAYOUT.spool_file(await slot_of(queue, "waits"))
    disk = without_checkpoint(files.disk)
    del disk.names[path.parent][path.name]

    (lost,) = (await rebuilt(LossyFiles(disk))).lost

    assert "missing" in lost


async def test_of_a_damaged_file_only_the_mail_is_named_that_has_it() -> None:
    files = LossyFiles()
    slot = await an_envelope_that_outlived_its_finish(files, HEIR)
    disk = without_checkpoint(files.disk)
    content(disk, LAYOUT.spool_file(slot)).write(content_at(slot) + 8, b"?")
    files = LossyFiles(disk)

    (lost,) = (await rebuilt(files)).lost

    assert f"spool file {slot}" in lost
    assert set(await facts_on(files.disk)) == {"stays"}
    assert f"mail-{slot}" in files.names(QUARANTINE / "1")


async def test_a_mail_that_was_held_and_released_is_not_held_again() -> None:
    """The HOLD lies in lane `new`, which is read after the lane of its later ENVELOPE."""
    async with opened(Disk()) as (files, queue):
        outside = Outside(files, queue)
        await outside.enqueue("waits")
        await outside.lease()
        await outside.change("hold", "waits")
        await outside.retry("waits", HOUR)
        await outside.change("release", "waits")
        await queue.maintenance.checkpoint()
    files = LossyFiles(without_checkpoint(files.disk))

    await rebuilt(files)

    assert await facts_on(files.disk) == {"waits": (("waits0@example.net",), False, None)}


# Interrupted


async def a_log_that_knows_much() -> tuple[Disk, Facts]:
    """Return a store without a checkpoint, and what is to come of it. Its log knows that "ended"
    is over, whose file looks whole, as if its freeing had not reached the disk."""
    async with opened(Disk(), options=POOLED) as (files, queue):
        outside = Outside(files, queue)
        await outside.enqueue("ended")
        slot = await slot_of(queue, "ended")
        path, start = LAYOUT.spool_file(slot), offset_of(slot)
        whole = content(files.disk, path).read(start, PLACE_SIZES[kind_of(slot)])
        for name in ("partly", "dead", "held", "waits"):
            await outside.enqueue(name, 2, HOUR if name == "waits" else timedelta(0))
        await outside.change("hold", "held")
        while not {"partly", "dead"} <= outside.items.keys():
            await outside.lease()
        await outside.transmit("partly", ("partly0@example.net",))
        await outside.reject("dead")
        await outside.done("ended")
    disk = without_checkpoint(files.disk)
    content(disk, path).write(start, whole)
    files = LossyFiles(disk.copy())
    await rebuilt(files)
    found = await facts_on(files.disk)
    assert found["partly"][0] == ("partly1@example.net",)
    assert found.keys() == {"partly", "dead", "held", "waits"}
    return disk, found


async def test_a_rebuild_that_failed_anywhere_still_knows_what_the_first_log_said() -> None:
    disk, expected = await a_log_that_knows_much()
    failed = 0
    for call in range(1, 10_000):
        files = LossyFiles(disk.copy())
        files.fail = {call: StoreFull("no space is left")}
        try:
            await rebuilt(files)
        except StoreFull:
            failed += 1
        if files.calls < call:
            break
        files.fail = {}
        if LAYOUT.checkpoint.name not in files.names(ROOT):
            await rebuilt(files)
        assert await facts_on(files.disk) == expected, call
    assert failed > 50


async def test_a_rebuild_that_was_cut_anywhere_still_knows_what_the_first_log_said() -> None:
    disk, expected = await a_log_that_knows_much()
    files = LossyFiles(disk.copy())
    await rebuilt(files)
    again = 0
    for cut in files.journal.cuts():
        for left in disks_after(files.journal, cut, most=6):
            after = LossyFiles(left)
            if LAYOUT.checkpoint.name not in after.names(ROOT):
                await rebuilt(after)
                again += 1
            assert await facts_on(after.disk) == expected, cut
    assert again > 50


async def test_no_cut_leaves_the_checkpoint_of_a_rebuild_that_is_not_complete() -> None:
    """Otherwise a later rebuild reads this log's predecessor too, which has none of the mail
    since (FORMAT.md 9)."""
    disk, _ = await a_log_that_knows_much()
    files = LossyFiles(disk)
    await rebuilt(files)
    with_checkpoint = 0
    for cut in [*files.journal.cuts()][-6:]:
        for left in disks_after(files.journal, cut):
            if LAYOUT.checkpoint.name in left.names[ROOT]:
                assert COMPLETE in left.names[QUARANTINE / "1"], cut
                with_checkpoint += 1
    assert with_checkpoint > 1


async def test_no_cut_undoes_a_rebuild_that_has_returned() -> None:
    disk, _ = await a_log_that_knows_much()
    files = LossyFiles(disk)
    await rebuilt(files)

    for left in disks_after(files.journal, len(files.journal.steps)):
        assert LAYOUT.checkpoint.name in left.names[ROOT]
        assert verify(LossyFiles(left), LAYOUT).is_whole


# A disk that goes bad


class BadFile(LossyFile):
    """A file some of whose bytes cannot be read."""

    def __init__(self, files: LossyFiles, inode: int, bad: range) -> None:
        super().__init__(files, inode)
        self._bad = bad

    def pread(self, offset: int, length: int) -> bytes:
        if self._bad and offset < self._bad.stop and offset + length > self._bad.start:
            raise StoreFailed("cannot read: Input/output error")
        return super().pread(offset, length)


class BadDisk(LossyFiles):
    """A disk with bytes that cannot be read; `apart` tells that quarantine is another one."""

    def __init__(self, disk: Disk, *, apart: bool = False) -> None:
        super().__init__(disk)
        self.bad: dict[int, range] = {}
        self.apart = apart

    def spoil(self, path: PurePath, bad: range) -> None:
        self.bad[self.disk.names[path.parent][path.name]] = bad

    def file_of(self, inode: int) -> LossyFile:
        return BadFile(self, inode, self.bad.get(inode, range(0)))

    def rename(self, source: PurePath, target: PurePath) -> None:
        if self.apart and LAYOUT.mail in source.parents and LAYOUT.mail not in target.parents:
            raise StoreFailed("cannot rename: Invalid cross-device link")
        super().rename(source, target)


async def some_mails(count: int, *, streams: bool = False) -> tuple[Disk, list[int]]:
    """Return a store without a checkpoint in which mails wait, and their slots. `streams`: each
    has a file of its own."""
    async with opened(Disk()) as (files, queue):
        outside, names = Outside(files, queue), [f"mail{number}" for number in range(count)]
        for name in names:
            await (outside.stream if streams else outside.enqueue)(name)
        slots = [await slot_of(queue, name) for name in names]
    return without_checkpoint(files.disk), slots


@pytest.mark.parametrize("bad", [0, HEADER_BYTES + 8], ids=["header", "content"])
@pytest.mark.parametrize("has_log", [True, False], ids=["log", "no log"])
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
async def test_a_spool_file_that_the_disk_does_not_give_is_named_and_kept(
    bad: int, has_log: bool, apart: bool
) -> None:
    disk, slots = await some_mails(3, streams=True)
    path = LAYOUT.spool_file(slots[1])
    if not has_log:
        disk.names[LAYOUT.log].clear()
    files = BadDisk(disk, apart=apart)
    files.spoil(path, range(bad, bad + 1))

    found = await rebuilt(files)

    (lost,) = found.lost
    assert f"spool file {slots[1]}" in lost
    assert found.mails == 2
    assert (f"{path.name}.damaged" in files.names(path.parent)) is apart
    assert (f"mail-{slots[1]}" in files.names(found.quarantine)) is not apart
    assert path.name not in files.names(path.parent)
    durable, _ = files.journal.unproven(len(files.journal.steps))
    aside = path.parent if apart else found.quarantine
    assert {f"{path.name}.damaged", f"mail-{slots[1]}"} & durable.names[aside].keys()
    assert files.open_files == 0, "what was opened is closed"
    assert set(await facts_on(files.disk)) == {"mail0", "mail2"}


@pytest.mark.parametrize("bad", [0, HEADER_BYTES + 8], ids=["header", "content"])
@pytest.mark.parametrize("is_written", [False, True], ids=["unreadable", "overwritten"])
async def test_a_damaged_place_is_named_and_copied_beside_the_mails_of_its_file(
    bad: int, is_written: bool
) -> None:
    disk, slots = await some_mails(3)
    path, start = LAYOUT.spool_file(slots[1]), offset_of(slots[1])
    size = PLACE_SIZES[kind_of(slots[1])]
    files = BadDisk(disk)
    if is_written:
        content(disk, path).write(start + bad, b"?")
    else:
        files.spoil(path, range(start + bad, start + bad + 1))
    before = content(disk, path).read(start, size)

    found = await rebuilt(files)

    (lost,) = found.lost
    assert f"spool file {slots[1]}" in lost
    assert found.mails == 2
    durable, _ = files.journal.unproven(len(files.journal.steps))
    assert f"mail-{slots[1]}" in durable.names[found.quarantine]
    copy = content(files.disk, found.quarantine / f"mail-{slots[1]}").read(0, size)
    assert copy == (before if is_written else bytes(size))
    assert files.open_files == 0, "what was opened is closed"
    assert set(await facts_on(files.disk)) == {"mail0", "mail2"}
    again = await rebuilt(LossyFiles(without_checkpoint(files.disk)))
    assert again.lost == [], "it was freed"


async def test_a_page_of_the_old_log_that_the_disk_does_not_give_ends_nothing() -> None:
    """Its marks and its records are passed over; the others are believed."""
    disk, expected = await a_log_that_knows_much()
    files = BadDisk(disk)
    names = [name for name in files.names(LAYOUT.log) if name.startswith("new.")]
    files.spoil(LAYOUT.log / names[-1], range(5000, 5001))

    found = await rebuilt(files)

    assert found.unreadable_parts == 1
    assert set(await facts_on(files.disk)) >= expected.keys()


async def test_only_the_records_of_a_bad_page_are_passed_over() -> None:
    mails = [f"mail{number:02}" for number in range(60)]
    large = replace(POOLED, segment_bytes=8 * PAGE, segment_envelopes=64)
    async with opened(Disk(), options=large) as (files, queue):
        outside = Outside(files, queue)
        for name in mails:
            await outside.enqueue(name, 2)
            await outside.lease()
            await outside.transmit(name, (f"{name}0@example.net",))
    bad = BadDisk(without_checkpoint(files.disk))
    (segment,) = bad.names(LAYOUT.log)
    bad.spoil(LAYOUT.log / segment, range(3 * PAGE + 100, 3 * PAGE + 101))

    assert (await rebuilt(bad)).unreadable_parts == 1

    left = {name: recipients for name, (recipients, *_) in (await facts_on(bad.disk)).items()}
    again = [name for name in mails if len(left[name]) == 2]
    assert 0 < len(again) < 20
    assert not {mails[0], mails[-1]} & set(again)
    assert all(left[name] == (f"{name}1@example.net",) for name in set(mails) - set(again))


async def test_an_old_log_that_the_disk_does_not_give_at_all_ends_nothing() -> None:
    disk, expected = await a_log_that_knows_much()
    files = BadDisk(disk)
    for name in files.names(LAYOUT.log):
        files.spoil(LAYOUT.log / name, range(1 << 30))

    found = await rebuilt(files)

    assert found.unreadable_parts >= len(expected)
    assert set(await facts_on(files.disk)) == {*expected, "ended"}
