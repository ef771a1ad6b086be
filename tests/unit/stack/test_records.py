"""What a stack remembers of a server."""

from pathlib import Path

import pytest

from stack import records
from stack.errors import StackError
from stack.records import Record


def test_a_record_is_read_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    record = Record("native", {"amqp": 1}, {"password": "p"}, {"name": "n"})

    record.save(path)

    assert records.load(path) == record
    assert [file.name for file in tmp_path.iterdir()] == ["server.json"]


def test_only_its_owner_reads_a_record(tmp_path: Path) -> None:
    Record("native").save(tmp_path / "server.json")

    assert (tmp_path / "server.json").stat().st_mode & 0o777 == 0o600


def test_a_record_shows_no_secrets_when_printed() -> None:
    assert "hunter2" not in repr(Record("native", secrets={"password": "hunter2"}))


def test_no_file_is_no_record(tmp_path: Path) -> None:
    assert records.load(tmp_path / "server.json") is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"unknown": 1}'])
def test_a_damaged_record_is_refused_with_the_way_out(tmp_path: Path, content: str) -> None:
    path = tmp_path / "server.json"
    path.write_text(content)

    with pytest.raises(StackError, match="down"):
        records.load(path)
