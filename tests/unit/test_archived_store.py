"""The archive and the lake of a queue in a directory: who may have them, for which queue, and that
one run at a time writes the lake."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import pytest

from postroad.adapters.disk.files import DiskFiles
from postroad.bootstrap.archiving import TRIED_AGAIN, LakeLock, begin_archive, lake_of
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.opening import describe
from postroad.errors import ArchiveUnderWay, InvalidInput
from support.memory.clock import ManualClock

MINUTE, AT_ONCE = timedelta(minutes=1), timedelta(0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "a store"
    found.mkdir()
    describe(DiskFiles(), found, StoreOptions(), create=True)
    return found


def url_of(root: Path) -> str:
    return f"embedded://{root}".replace(" ", "%20")


def test_the_first_run_makes_the_archive_for_the_user_of_the_store(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, bool]] = []

    def chown(path: Path, *_: int, follow_symlinks: bool) -> None:
        assert not follow_symlinks, "a link of the store's user may lead anywhere"
        given.append((path.name, (root / "archive").exists()))

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", chown)

    layout = begin_archive(url_of(root))

    assert layout.archive == root / "archive"
    assert given == [("archive.new", False)], "the store never finds one that it may not write"
    begin_archive(url_of(root))
    assert given[1:] == [("archive", True)], "one that was made by hand is given, too"
    assert sorted(each.name for each in root.iterdir() if "archive" in each.name) == ["archive"]


def test_what_a_killed_run_left_is_no_hindrance(root: Path) -> None:
    (root / "archive.new").mkdir()

    begin_archive(url_of(root))

    assert [each.name for each in root.iterdir() if "archive" in each.name] == ["archive"]


def test_the_refusal_of_another_user_names_whose_the_store_is(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = (root / "store").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    with pytest.raises(InvalidInput, match=f"run this as root, or as the user with id {owner}$"):
        begin_archive(url_of(root))

    assert not (root / "archive").exists()


def test_an_archive_that_cannot_be_written_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_archive(url_of(root))
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(InvalidInput, match="archive cannot be written: give it to the user"):
        begin_archive(url_of(root))


def lock(lake: Path, name: str) -> LakeLock:
    return LakeLock(lake, name, ManualClock(), timedelta(0))


async def test_a_lake_is_that_of_the_queue_that_came_first(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    async with lock(lake, "/one"):
        pass
    async with lock(lake, "/one"):
        pass
    for _ in range(2):  # a refusal leaves no lock
        with pytest.raises(InvalidInput, match="that of the queue in /one: name another"):
            await lock(lake, "/two").__aenter__()
    (lake / "queue").unlink()
    (lake / "queue.new").touch()
    async with lock(lake, "/two"):
        assert (lake / "queue").read_text() == "/two"
    assert (lake / "queue").stat().st_mode & 0o777 == 0o644, "whose user may only read it"


@pytest.mark.parametrize(
    ("folder", "place"),
    [("//var/lake", "/var/lake"), ("/var/../lake", "/lake"), ("/var/a b%20", "/var/a b%20")],
)
def test_each_run_spells_a_lake_alike(folder: str, place: str) -> None:
    assert str(lake_of("embedded:///store", Path(folder))) == place


async def test_a_second_run_is_refused_until_the_first_ended(tmp_path: Path) -> None:
    clock = ManualClock()
    async with LakeLock(tmp_path, "/store", clock, AT_ONCE):
        with pytest.raises(ArchiveUnderWay):
            await LakeLock(tmp_path, "/store", clock, AT_ONCE).__aenter__()

    async with LakeLock(tmp_path, "/store", clock, AT_ONCE):
        pass


async def test_a_patient_run_begins_when_the_one_before_has_ended(tmp_path: Path) -> None:
    clock = ManualClock()
    async with LakeLock(tmp_path, "/store", clock, AT_ONCE):
        following = asyncio.create_task(LakeLock(tmp_path, "/store", clock, MINUTE).__aenter__())
        await clock.advance(MINUTE / 2)
        assert not following.done()

    await clock.advance(TRIED_AGAIN)
    await (await following).__aexit__(None, None, None)


async def test_a_patient_run_gives_up_in_the_end(tmp_path: Path) -> None:
    clock = ManualClock()
    async with LakeLock(tmp_path, "/store", clock, AT_ONCE):
        following = asyncio.create_task(LakeLock(tmp_path, "/store", clock, MINUTE).__aenter__())
        await clock.advance(MINUTE + TRIED_AGAIN)
        with pytest.raises(ArchiveUnderWay):
            await following
