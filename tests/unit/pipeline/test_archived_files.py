"""Wherever runs of the archive are killed, the lake knows each segment that it has read for as long
as the file of it may be there: a file that is read again would undo what is known since."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any, cast
from uuid import uuid4

import pytest

from postroad.adapters.disk.files import DiskFiles
from postroad.adapters.memory.clock import ManualClock
from postroad.embedded.archive import ArchivedName, DroppedName, read_archive
from postroad.embedded.layout import NEW, Layout
from postroad.pipeline.spark import store_archiving
from postroad.pipeline.spark.store_archiving import archive_segments
from postroad.pipeline.spark.store_lake import StoreLake


class Killed(Exception):
    pass


class Rows(list[dict[str, Any]]):
    """Lines of a table."""

    def collect(self) -> Rows:
        return self


class Lake:
    """What a run commits, without Spark. `calls`: what was committed, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.named, self.read = folder, Rows(), list[str]()
        self.killed_behind = ""

    def parts(self) -> Rows:
        return self.named

    def gaps(self) -> tuple[Any, ...]:
        return ()

    def put_parts(self, parts: Rows) -> None:
        forgotten = {each["salt"] for each in self.named} - {each["salt"] for each in parts}
        files = {path.name.rpartition(".")[2] for path in self.folder.glob("*")}
        assert not forgotten & files, "a file is there that no one knows as read"
        self.named = parts
        self.commit("put_parts")

    def commit(self, name: str) -> None:
        if name == self.killed_behind:
            raise Killed

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.commit(name)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    made = Lake(tmp_path / "archive")
    made.folder.mkdir()

    def read(
        _lake: Lake, _folder: Path, segments: Iterable[ArchivedName], *_: object
    ) -> tuple[Rows, Rows, dict[str, int]]:
        salts = [each.salt.hex() for each in segments]
        made.read += salts
        return Rows(), Rows({"salt": each} for each in salts), {}

    monkeypatch.setattr(store_archiving, "_segments", lambda parts: parts)
    monkeypatch.setattr(store_archiving, "_read", read)
    monkeypatch.setattr(store_archiving, "_whole_hours", lambda *_: [])
    return made


def retire(lake: Lake, number: int) -> ArchivedName:
    name = ArchivedName(number, number, NEW, number, bytes([number] * 16))
    (lake.folder / str(name)).touch()
    return name


def run(lake: Lake, killed_behind: str = "") -> None:
    lake.killed_behind = killed_behind
    found = read_archive(DiskFiles(), Layout(lake.folder.parent, lake.folder.parent))
    assert found is not None
    arguments = (lake.folder, found, lambda _: None, ManualClock(), uuid4())
    if not killed_behind:
        archive_segments(cast("StoreLake", lake), *arguments)
        return
    with pytest.raises(Killed):
        archive_segments(cast("StoreLake", lake), *arguments)


@pytest.mark.parametrize("second", ["put_parts", "put_run"])
@pytest.mark.parametrize("first", ["put_parts", "put_run"])
def test_no_segment_is_read_again_after_two_runs_that_were_killed(
    lake: Lake, first: str, second: str
) -> None:
    retire(lake, 1)
    run(lake, killed_behind=first)
    retire(lake, 2)
    run(lake, killed_behind=second)

    run(lake)
    run(lake)

    assert lake.read == [bytes([number] * 16).hex() for number in (1, 2)]
    assert list(lake.folder.iterdir()) == []


def test_a_deleted_file_is_gone_for_good_before_the_lake_forgets_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Files(DiskFiles):
        def unlink(self, path: PurePath) -> None:
            order.append("unlink")
            super().unlink(path)

        def sync_directory(self, path: PurePath) -> None:
            order.append("sync")

    monkeypatch.setattr(store_archiving, "DiskFiles", Files)
    retire(lake, 1)
    run(lake, killed_behind="put_parts")

    run(lake)

    assert order == ["unlink", "sync"]


def test_an_archive_that_is_removed_meanwhile_is_no_error(lake: Lake) -> None:
    gone = DroppedName(1, 2)
    (lake.folder / str(gone)).touch()
    found = read_archive(DiskFiles(), Layout(lake.folder.parent, lake.folder.parent))
    assert found is not None
    (lake.folder / str(gone)).unlink()
    lake.folder.rmdir()

    arguments = (lake.folder, found, lambda _: None, ManualClock(), uuid4())
    archive_segments(cast("StoreLake", lake), *arguments)
