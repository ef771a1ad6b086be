"""Mail with a priority, and expired mail, in what the distributed engine stores and sends: the
release before reads it by its own codecs and writes it again, and this one reads what the release
before writes. `tests/integration/test_rolling_upgrade.py` has both at work on real servers."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.queue_harness import letter
from postroad.adapters.cassandra import (
    letter_statements,
    mark_rows,
    mark_statements,
    rows,
    statements,
)
from postroad.adapters.cassandra.session import UNSET
from postroad.domain.entries import Change, Entry
from postroad.domain.selection import Selector
from postroad.domain.wire import decode, encode
from support.in_memory_cluster import NAME, InMemoryCluster
from support.releases import unpack_older
from support.stored_rows import stored

TESTS = Path(__file__).parents[2]
DRIVER = TESTS / "support/codec_driver.py"


class OlderCodecs:
    """The codecs of the release before, in a process of their own."""

    def __init__(self, folder: Path) -> None:
        self._path = f"{unpack_older(folder)}:{TESTS}"

    def read(self, *asked: tuple[str, object]) -> list[Any]:
        """Return what each of these is there."""
        ended = subprocess.run(
            [sys.executable, str(DRIVER)],
            input=pickle.dumps(asked),
            env={"PYTHONPATH": self._path},
            capture_output=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr.decode()
        found: list[Any] = pickle.loads(ended.stdout)
        return found


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> OlderCodecs:
    return OlderCodecs(tmp_path_factory.mktemp("older"))


async def test_a_priority_goes_through_the_release_before(
    cluster: InMemoryCluster, older: OlderCodecs
) -> None:
    process = await cluster.start()
    priorities = {"urgent": 50, "bulk": -100, "plain": 0}
    for name, priority in priorities.items():
        await process.queue.enqueue(letter(name, priority=priority, attributes={"key": "value"}))
    bodies = [each.body for each in cluster.broker.ready]
    entries = list(cluster.tables.rows.values())

    read = older.read(
        *(("body again", each) for each in bodies),
        *(("body of its own", each) for each in bodies),
        *(("row", _row(each)) for each in entries),
    )

    count = len(priorities)
    again, own, successors = read[:count], read[count : 2 * count], read[2 * count :]
    assert [decode(each) for each in again] == [decode(each).again() for each in bodies]
    for body, of_older in zip(bodies, own, strict=True):
        reference, found = decode(body), decode(of_older)
        assert found.envelope == replace(reference.envelope, priority=0)  # type: ignore[type-var]
        assert found == replace(reference, envelope=found.envelope, shape=None)
        assert encode(found) == of_older.replace(b'"header":9', b'"header":0')
    assert [rows.entry_of(each) for each in successors] == [
        each.with_change(each.key, Change.nothing(each)) for each in map(_as_stored, entries)
    ]
    assert {each["name"]: rows.entry_of(each).envelope.priority for each in successors} == (
        priorities
    )


async def test_expired_mail_is_a_dead_letter_of_the_release_before(
    cluster: InMemoryCluster, older: OlderCodecs
) -> None:
    """It takes an ending `expired` for the end of the bytes too, which the letter needs."""
    process = await cluster.start()
    await process.queue.enqueue(letter("ended", priority=50))
    assert await process.queue.expire(Selector(name="ended")) == 1
    [mark], [dead] = cluster.tables.marks.values(), cluster.tables.letters.values()
    assert mark.ending is not None
    row = stored(
        mark_statements.MARK_COLUMNS,
        (mark.delivered_at or UNSET, *mark_rows.ending_values(mark.ending)),
    )
    stored_letter = stored(letter_statements.LETTER_COLUMNS, rows.letter_values(str(NAME), dead))

    [(ending, deletes_bytes), again] = older.read(("mark", row), ("letter", stored_letter))

    assert (ending, deletes_bytes) == ("rejected", False)
    found = rows.letter_of(again)
    assert (found.reason, found.entry) == (dead.reason, rows.letter_of(stored_letter).entry)
    assert found.entry is not None
    assert found.entry.envelope.priority == 50
    assert dead.entry is not None
    assert dead.entry.blob_key in cluster.blobs


def _row(entry: Entry) -> dict[str, object]:
    return stored(statements.ROW_COLUMNS, rows.entry_values(entry))


def _as_stored(entry: Entry) -> Entry:
    """Return an entry as it is read."""
    return rows.entry_of(_row(entry))
