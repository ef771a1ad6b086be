"""The directory of a store: which one is taken, and that any other stays as it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

from postroad.adapters.disk.files import DiskFiles
from postroad.bootstrap.embedded_store import open_directory, verify_directory
from postroad.errors import InvalidQueueURL, QueueNotFound


def state(directory: Path) -> tuple[int, set[str]]:
    return directory.stat().st_mode & 0o7777, {each.name for each in directory.iterdir()}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a directory of all users, as /tmp."""
    (tmp_path / "of another").touch()
    tmp_path.chmod(0o1777)
    return tmp_path


async def test_a_directory_without_a_store_is_not_changed_by_looking_for_one(shared: Path) -> None:
    with pytest.raises(QueueNotFound):
        await open_directory(shared)
    with pytest.raises(QueueNotFound):
        verify_directory(shared)

    assert state(shared) == (0o1777, {"of another"})


async def test_a_store_that_another_process_is_making_is_opened_once_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, begun, goes_on = tmp_path / "queue", threading.Event(), threading.Event()
    honest = DiskFiles.rename

    def rename(files: DiskFiles, source: PurePath, target: PurePath) -> None:
        if target.name == "store":
            begun.set()
            assert goes_on.wait(30)
        honest(files, source, target)

    monkeypatch.setattr(DiskFiles, "rename", rename)
    making = asyncio.create_task(open_directory(root, create=True))
    await asyncio.to_thread(begun.wait, 30)
    opening = asyncio.create_task(open_directory(root))
    await asyncio.sleep(0.1)  # it would have been refused by then
    goes_on.set()

    for each in (await opening, await making):
        await each.close()


async def test_a_directory_with_other_files_does_not_become_a_store(shared: Path) -> None:
    with pytest.raises(InvalidQueueURL, match="has other files, as of another, and no store"):
        await open_directory(shared, create=True)

    assert state(shared) == (0o1777, {"of another"})


async def test_a_volume_that_was_just_made_becomes_a_store_for_its_user_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "lost+found").mkdir()
    for _ in range(2):
        await (await open_directory(tmp_path, create=True)).close()

        assert state(tmp_path)[0] == 0o700


async def test_a_store_that_another_process_makes_meanwhile_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Path.iterdir

    def made_before(directory: Path) -> Iterator[Path]:
        monkeypatch.setattr(Path, "iterdir", listed)
        asyncio.run(_make(directory))
        return listed(directory)

    monkeypatch.setattr(Path, "iterdir", made_before)

    await (await open_directory(tmp_path, create=True)).close()


async def _make(directory: Path) -> None:
    await (await open_directory(directory, create=True)).close()


async def test_a_directory_for_mails_below_that_of_the_store_is_none_of_other_files(
    tmp_path: Path,
) -> None:
    """It is there where a disk is mounted on it."""
    (tmp_path / "disks" / "mails").mkdir(parents=True)
    for _ in range(2):
        mail = tmp_path / "disks" / "mails"
        await (await open_directory(tmp_path, create=True, mail=mail)).close()
