"""A store directory of an older release is opened by this one with every mail as it was left, and
by the older one again."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contract.queue_harness import letter
from postroad import open_queue
from postroad.bootstrap.embedded_store import verify_directory
from postroad.embedded import maintenance
from support.outcomes import kept_in_log
from support.releases import HERE, unpack_older
from support.store_driver import fill

DRIVER = Path(__file__).parents[1] / "support" / "store_driver.py"
BOTH = ["a@x.example", "b@y.example"]
PLAIN = {
    "recipients": BOTH,
    "attributes": {"key": "\u00e9"},
    "held": False,
    "delayed": False,
    "attempt": 0,
    "error": None,
    "reason": None,
}
LEFT = {
    "partly": {**PLAIN, "recipients": BOTH[1:], "content": True},
    "retried": {**PLAIN, "delayed": True, "attempt": 1, "error": "451 later"},
    "dead": {**PLAIN, "reason": "550 no"},
    "held": {**PLAIN, "delayed": True, "held": True},
    "later": {**PLAIN, "delayed": True},
    "waits": {**PLAIN, "content": True},
}


def run(release: Path, command: str, root: Path) -> str:
    """Let a release work on a store, as a process that ends without closing it."""
    return _started(release, str(DRIVER), command, str(root))


def inspect(release: Path, command: str, root: Path) -> str:
    """Let a release run one of its commands on a store; fails where the command does."""
    return _started(release, "-c", "from postroad.cli import main; main()", command, str(root))


def _started(release: Path, *arguments: str) -> str:
    environment = {"PYTHONPATH": str(release), "PATH": "/usr/bin:/bin"}
    program = [sys.executable, *arguments]
    ended = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def state(release: Path, root: Path) -> Any:
    return json.loads(run(release, "read", root))


def priorities(root: Path) -> Any:
    return json.loads(run(HERE, "priorities", root))


def test_a_store_of_an_older_release_has_every_mail_as_it_was_left(tmp_path: Path) -> None:
    older, root = unpack_older(tmp_path / "older"), tmp_path / "store"
    run(older, "fill", root)

    report = verify_directory(root)
    assert (report.damage, report.mails, report.dead_letters) == ([], 5, 1)
    assert state(HERE, root) == LEFT
    assert verify_directory(root).damage == []
    assert state(older, root) == LEFT, "it goes back to the older release"


def test_a_store_of_this_release_is_read_by_an_older_one(tmp_path: Path) -> None:
    older, root = unpack_older(tmp_path / "older"), tmp_path / "store"
    run(HERE, "fill", root)
    assert len(kept_in_log(root)) == 3, "records that the older release does not know"

    assert state(older, root) == LEFT
    assert state(HERE, root) == LEFT


def test_a_store_of_this_release_is_verified_and_rebuilt_by_an_older_one(tmp_path: Path) -> None:
    """The record OUTCOMES has a type that it does not know."""
    older, root = unpack_older(tmp_path / "older"), tmp_path / "store"
    run(HERE, "fill", root)

    inspect(older, "verify", root)
    assert inspect(older, "dump", root).count("unknown type 6") == 3
    inspect(older, "rebuild", root)

    assert {name: each["recipients"] for name, each in state(HERE, root).items()} == {
        name: each["recipients"] for name, each in LEFT.items()
    }


def test_a_priority_and_an_expired_mail_are_read_by_an_older_one(tmp_path: Path) -> None:
    """It passes over the priority, and drops it with the next record of the mail (ADR 0030)."""
    older, root = unpack_older(tmp_path / "older"), tmp_path / "store"
    run(HERE, "fill_anew", root)
    waits = {**PLAIN, "content": True}

    expired = {**PLAIN, "reason": "expired by an administrator"}
    assert state(older, root) == {"urgent": waits, "expired": expired}
    assert priorities(root) == {"urgent": 50}
    run(older, "requeue", root)
    assert state(older, root) == {"urgent": waits, "expired": waits}
    assert state(HERE, root) == {"urgent": waits, "expired": waits}
    assert priorities(root) == {"urgent": 0, "expired": 0}


def test_a_mail_that_was_put_off_is_read_by_an_older_one(tmp_path: Path) -> None:
    older, root = unpack_older(tmp_path / "older"), tmp_path / "store"
    run(HERE, "put_off", root)

    assert state(older, root) == {"rests": {**PLAIN, "delayed": True, "error": "451 rests"}}


def test_an_enqueue_key_is_kept_until_an_older_one_owns_the_store(tmp_path: Path) -> None:
    """The older release passes over KEYs, and its checkpoint removes their lane."""
    older, root = unpack_older(tmp_path / "older"), tmp_path / "store"
    waits = {**PLAIN, "delayed": True}
    run(HERE, "keyed", root)
    run(HERE, "keyed", root)
    assert verify_directory(root).mails == 1

    assert state(older, root) == {"keyed": waits}
    run(older, "fill", root)
    run(HERE, "keyed", root)

    assert verify_directory(root).damage == []
    assert {"keyed": waits}.items() <= state(HERE, root).items()


@pytest.mark.parametrize("filled", [False, True], ids=["log_without_segments", "filled"])
async def test_an_archived_store_whose_segments_left_is_read_by_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: bool
) -> None:
    """The segment is gone in which the log ends, or began anew behind it; that release would have
    kept it."""
    monkeypatch.setattr(maintenance, "LONGEST_OPEN", timedelta(0))
    older, root = unpack_older(tmp_path / "older"), tmp_path / "store"
    (root / "archive").mkdir(parents=True)
    async with open_queue(f"embedded://{root}", create=True) as queue:
        await queue.enqueue(letter("passes"))
        await (await anext(queue.dequeue())).done()
        for _ in range(2):
            await queue.maintain()
        assert list((root / "log").iterdir()) == []
        if filled:
            await fill(queue)
            await queue.maintain()
    left, kept = LEFT if filled else {}, sorted((root / "archive").iterdir())
    assert kept

    assert verify_directory(root).damage == []
    assert state(older, root) == left
    assert state(HERE, root) == left
    assert state(older, root) == left
    assert sorted((root / "archive").iterdir())[: len(kept)] == kept


def test_a_mail_of_an_older_one_has_no_priority(tmp_path: Path) -> None:
    older, root = unpack_older(tmp_path / "older"), tmp_path / "store"
    run(older, "fill", root)

    waiting = {name for name, each in LEFT.items() if each["reason"] is None}
    assert priorities(root) == dict.fromkeys(waiting, 0)
