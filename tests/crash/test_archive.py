"""An archived store moves what it needs no longer, so its history stays: whatever a cut leaves,
no mail is lost or comes back, and each segment is in the log, in the archive, or named as dropped.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path, PurePath

import pytest
from prometheus_client import REGISTRY

from crash import archived
from crash.cuts import check_cuts, disks_after
from crash.lossy import Disk, Journal, LossyFile, LossyFiles
from crash.script import first_mails
from crash.test_strace import lives
from crash.world import ROOT, Outside, check, opened, start
from postroad.domain.values.instants import microseconds
from postroad.embedded.history import read_history
from postroad.embedded.log.layout import KEYS, NEW, Layout
from postroad.embedded.store import archive
from postroad.embedded.store.archive import (
    Archived,
    ArchivedName,
    BegunName,
    DroppedName,
    end_of,
    read_archive,
    read_name,
)
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import PostroadError, StoreFailed, StoreFull
from postroad.ports.files import DiskSpace
from support.memory.clock import ManualClock

LAYOUT = Layout(ROOT, ROOT / "mail")


async def archived_run(files: LossyFiles, clock: ManualClock, rounds: int = 3) -> None:
    """Let mails pass until segments were moved, with a checkpoint after each round."""
    files.make_directory(LAYOUT.archive)
    files.sync_directory(ROOT)
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    for number in range(rounds):
        for char in "abcdefgh":
            await outside.enqueue(f"{char}{number}")
            await outside.done((await outside.lease()).mail.name or "")
        await outside.enqueue(f"stays{number}", delay=timedelta(hours=1))
        await queue.maintenance.checkpoint()
        await clock.advance(timedelta(seconds=15))
    await queue.close()


def held(files: LossyFiles) -> Archived:
    found = read_archive(files, LAYOUT)
    assert found is not None
    return found


def unarchived() -> float:
    return REGISTRY.get_sample_value("postroad_unarchived_segments_total") or 0


async def test_segments_are_moved_in_the_order_in_which_they_went() -> None:
    files = LossyFiles()
    await archived_run(files, ManualClock())

    found = held(files)
    new = [each.sequence for each in found.segments if each.lane == NEW]
    assert len(new) > 3
    assert new == list(range(1, len(new) + 1))
    assert list(found.segments) == sorted(found.segments)
    assert found.dropped == []
    for each in found.segments:
        header = archive._header_of(files, LAYOUT.archive / str(each))
        assert header is not None
        assert (header.lane, header.sequence, header.salt) == (each.lane, each.sequence, each.salt)
        file = files.open(LAYOUT.archive / str(each))
        assert each.end == end_of(file.pread(0, file.size()), header)
        file.close()


async def test_a_store_without_the_directory_keeps_nothing() -> None:
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    await first_mails(Outside(files, queue), clock)
    await queue.close()

    assert read_archive(files, LAYOUT) is None


async def test_a_store_with_little_mail_moves_it_within_hours() -> None:
    files, clock = LossyFiles(), ManualClock()
    queue = await few_mails(files, clock)
    assert held(files).segments == []

    await clock.advance(timedelta(hours=1, seconds=1))
    for _ in range(2):
        await queue.maintenance.checkpoint()

    assert [(each.lane, each.sequence) for each in held(files).segments] == [(NEW, 1)]
    await Outside(files, queue).enqueue("next")
    await queue.close()
    assert await check_cuts(files.journal) > 30


class MovingFiles(LossyFiles):
    """A disk that is another one after the first look at the log or at the checkpoint."""

    def __init__(self, disk: Disk, later: Disk) -> None:
        super().__init__(disk)
        self._later = later

    def names(self, directory: PurePath) -> list[str]:
        found = super().names(directory)
        if directory == LAYOUT.log:
            self.disk = self._later
        return found

    def open(self, path: PurePath, *, create: bool = False) -> LossyFile:
        if path != LAYOUT.checkpoint:
            return super().open(path, create=create)
        now, self.disk = self.disk, self._later
        return LossyFiles(now).open(path)


async def test_a_history_that_is_read_beside_a_checkpoint_misses_no_segment() -> None:
    files = LossyFiles()
    files.make_directory(LAYOUT.archive)
    queue = await start(files)
    await queue.maintenance.recovering
    outside, disks = Outside(files, queue), list[Disk]()
    for first in (0, 10):
        for number in range(first, first + 10):
            await outside.enqueue(f"waits{number}")
        await queue.maintenance.checkpoint()
        disks.append(files.disk.copy())
    await queue.close()
    before, after = (len(LossyFiles(each).names(LAYOUT.log)) for each in disks)

    history = read_history(MovingFiles(*disks), LAYOUT, 0)

    assert after > before
    assert history is not None
    assert len(history.segments) == before


async def test_without_an_archive_a_segment_is_filled() -> None:
    files, clock = LossyFiles(), ManualClock()
    queue = await few_mails(files, clock, archived=False)
    await clock.advance(timedelta(hours=2))
    await queue.maintenance.checkpoint()
    await Outside(files, queue).enqueue("next")

    assert [each.sequence for each in queue.engine.lane(NEW).segments] == [1]
    await queue.close()


async def few_mails(files: LossyFiles, clock: ManualClock, *, archived: bool = True) -> OwnedQueue:
    if archived:
        files.make_directory(LAYOUT.archive)
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("one")
    await outside.lease()
    await outside.done("one")
    await queue.maintenance.checkpoint()
    return queue


async def test_after_every_cut_no_mail_is_lost_or_back() -> None:
    files = LossyFiles()
    await archived_run(files, ManualClock(), rounds=2)

    assert await check_cuts(files.journal, every=3) > 100


async def test_after_every_cut_each_segment_is_in_the_log_or_in_the_archive() -> None:
    files = LossyFiles()
    await archived_run(files, ManualClock(), rounds=2)
    found_some = 0
    for cut in _cuts_that_move(files.journal):
        for disk in disks_after(files.journal, cut, most=6):
            async with opened(disk) as (after, queue):
                await check(queue, files.journal.events(cut))
                in_log = [each.sequence for each in queue.engine.lane(NEW).segments]
                found = [each.sequence for each in held(after).segments if each.lane == NEW]
            assert sorted((*found, *in_log)) == list(range(1, len(found) + len(in_log) + 1))
            found_some += bool(found)
    assert found_some > 10


@pytest.mark.parametrize("error", [StoreFailed("no"), StoreFull("no")], ids=["failed", "full"])
async def test_what_cannot_be_archived_is_removed_and_counted(error: PostroadError) -> None:
    """Each call of a checkpoint that moves segments fails in turn: mail goes on all the same,
    unless what failed is the log's own."""
    before, stopped = unarchived(), 0
    for number in range(1, 40):
        files, clock = LossyFiles(), ManualClock()
        await archived_run(files, clock, rounds=1)
        (first,) = {each.obsolete_us for each in held(files).segments}
        queue = await start(files, clock)
        await queue.maintenance.recovering
        outside = Outside(files, queue)
        for char in "abcdefgh":
            await outside.enqueue(char)
            await outside.lease()
            await outside.done(char)
        files.fail = {files.calls + number: error}
        try:
            await queue.maintenance.checkpoint()
        except PostroadError:
            stopped += 1
        await queue.close()
        files.fail = {}
        async with opened(files.disk) as (_, queue):
            await check(queue, files.journal.events(len(files.journal.steps)))
        assert first
    assert unarchived() > before
    assert stopped < 20


async def test_the_oldest_go_first_and_what_was_dropped_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = LossyFiles()
    await archived_run(whole, ManualClock())
    all_of_them = held(whole).segments
    size = whole.open(LAYOUT.archive / str(all_of_them[0])).size()
    monkeypatch.setattr(archive, "MAX_BYTES", 3 * size)
    before = unarchived()
    files = LossyFiles()

    await archived_run(files, ManualClock())

    kept = held(files)
    assert list(kept.segments) == list(all_of_them)[-len(kept.segments) :]
    assert 1 <= len(kept.segments) <= 3
    (dropped,) = kept.dropped
    gone = all_of_them[: -len(kept.segments)]
    assert dropped == (gone[0].created_us, gone[-1].obsolete_us)
    assert unarchived() - before == len(gone)


async def test_a_full_disk_keeps_no_more_history_than_is_free_beside_it() -> None:
    files, clock = LossyFiles(), ManualClock()
    await archived_run(files, clock)
    had = held(files).segments
    total = sum(files.open(LAYOUT.archive / str(each)).size() for each in had)
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    for char in "abcdefgh":
        await outside.enqueue(char)
        await outside.done((await outside.lease()).mail.name or "")
    files.free = DiskSpace(total // 4, None)

    await queue.maintenance.checkpoint()
    await queue.close()

    kept = held(files).segments
    sizes = [files.open(LAYOUT.archive / str(each)).size() for each in kept]
    assert kept
    assert sum(sizes) <= total
    assert had[0] not in kept
    assert list(kept) == sorted(kept)
    assert held(files).dropped


async def test_what_cannot_be_moved_to_another_file_system_is_named_as_dropped() -> None:
    """The names of the archive can be written there; the segments cannot be renamed to it."""

    class Elsewhere(LossyFiles):
        def rename(self, source: PurePath, target: PurePath) -> None:
            if target.parent == LAYOUT.archive:
                raise StoreFailed("cannot rename it: Invalid cross-device link")
            super().rename(source, target)

    files, clock, before = Elsewhere(), ManualClock(), unarchived()
    begun_us = microseconds(clock.now())

    await archived_run(files, clock)

    assert held(files).segments == []
    (dropped,) = held(files).dropped
    assert begun_us <= dropped.first_us < dropped.before_us <= microseconds(clock.now())
    assert unarchived() - before > 3
    async with opened(files.disk) as (_, queue):
        await check(queue, files.journal.events(len(files.journal.steps)))


@pytest.mark.parametrize("listed", [1, 2])
async def test_an_archive_that_is_removed_meanwhile_stops_no_mail(listed: int) -> None:
    class Removed(LossyFiles):
        left = -1

        def names(self, directory: PurePath) -> list[str]:
            if directory == LAYOUT.archive:
                self.left -= 1
                if self.left == 0:
                    raise FileNotFoundError(str(directory))
            return super().names(directory)

    files = Removed()
    files.left = listed

    await archived_run(files, ManualClock(), rounds=1)

    assert files.left <= 0, "it was listed so often"
    async with opened(files.disk) as (_, queue):
        await check(queue, files.journal.events(len(files.journal.steps)))


@pytest.mark.parametrize("error", [StoreFailed("no"), StoreFull("too many open files")])
async def test_an_archive_that_cannot_be_listed_stops_no_mail(error: PostroadError) -> None:
    class Unlisted(LossyFiles):
        asked = 0

        def names(self, directory: PurePath) -> list[str]:
            if directory == LAYOUT.archive:
                self.asked += 1
                raise error
            return super().names(directory)

    files, clock = Unlisted(), ManualClock()
    queue = await few_mails(files, clock)
    await clock.advance(timedelta(hours=1, seconds=1))
    await queue.maintenance.round()

    assert files.asked >= 2
    await Outside(files, queue).enqueue("next")
    await queue.close()


async def test_a_store_without_mail_keeps_to_the_bounds() -> None:
    files, clock = LossyFiles(), ManualClock()
    await archived_run(files, clock)
    queue = await start(files, clock)
    await queue.maintenance.recovering
    await queue.maintenance.round()
    assert held(files).segments
    await clock.advance(timedelta(days=7, minutes=1))

    await queue.maintenance.round()
    await queue.close()

    assert held(files).segments == []
    assert held(files).dropped


async def test_what_no_run_read_for_a_week_is_dropped() -> None:
    files, clock = LossyFiles(), ManualClock()
    await archived_run(files, clock)
    old = held(files).segments
    await clock.advance(timedelta(days=7, minutes=1))

    await archived_run(files, clock, rounds=1)

    assert not set(held(files).segments) & set(old)
    assert held(files).dropped


@pytest.mark.parametrize(
    "name",
    [
        str(ArchivedName(5, 3, NEW, 7, 4728, b"s" * 16)),
        str(ArchivedName(5, 3, KEYS, 7, 4728, b"s" * 16)),
        str(DroppedName(1, 2)),
        str(BegunName(1)),
    ],
)
def test_a_name_is_read_as_it_was_written(name: str) -> None:
    assert str(read_name(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a",
        "new.0000000001",
        "1.2.new.x.00",
        "1.2.other.3.4.00",
        "dropped.1",
        "1.2.new.3.4.x",
        "begun.x",
    ],
)
def test_another_name_is_none(name: str) -> None:
    assert read_name(name) is None


@pytest.mark.needs("strace")
@pytest.mark.parametrize("accident", ["signal=SIGKILL", "error=EXDEV", "error=EIO"])
async def test_real_files_killed_or_failed_at_each_move(tmp_path: Path, accident: str) -> None:
    """A move that fails ends no life: the segment is removed."""
    found = await lives(tmp_path, "rename", accident, archived)

    assert found.places >= 2  # one of them gives the file `store` its name
    assert found.ended == (found.places if "KILL" in accident else 1)


def _cuts_that_move(journal: Journal) -> list[int]:
    """The cuts around each change of the archive."""
    near = set[int]()
    for number, step in enumerate(journal.steps):
        if getattr(step, "directory", None) == LAYOUT.archive:
            near |= {number - 1, number, number + 1, number + 2}
    return [cut for cut in journal.cuts() if cut in near]
