"""The files of the attempt log: rotated, bounded, shared by processes, and no reason to stop."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from postroad.adapters.disk import attempt_log
from postroad.adapters.disk.attempt_log import FileAttemptLog, LogLimits, outlived, read_attempts
from postroad.domain.delivery.attempts import Attempted
from postroad.domain.mail.mail import Outcome
from postroad.errors import InvalidSettings
from postroad.telemetry.metrics import UNLOGGED_ATTEMPTS

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
OK = {"b@example.net": Outcome.delivered("250 ok")}
LIMITS = LogLimits(lifetime=24 * HOUR, most_bytes=2**30, with_addresses=True)


class Hand:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


def attempted(number: int = 1) -> Attempted:
    return Attempted("out", UUID(int=2), UUID(int=1), number, "a@x.example", 9, NOON, NOON, 0.5)


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def opened(tmp_path: Path, hand: Hand) -> Callable[[], FileAttemptLog]:
    return lambda: FileAttemptLog(tmp_path / "log", LIMITS, hand)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "log").iterdir())


def numbers(tmp_path: Path) -> list[int | None]:
    found = read_attempts(tmp_path / "log")
    return [None if each is None else each.attempt for each in found]


def test_a_line_can_be_read_as_soon_as_it_is_written_by_the_owner_alone(
    opened: Callable[[], FileAttemptLog], tmp_path: Path
) -> None:
    opened().write(attempted(), OK)

    (path,) = files(tmp_path)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert numbers(tmp_path) == [1]


def test_a_new_file_begins_after_an_hour_or_when_it_is_full_or_the_clock_goes_back(
    opened: Callable[[], FileAttemptLog],
    tmp_path: Path,
    hand: Hand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = opened()
    counts = []
    for step in (timedelta(0), HOUR - timedelta(seconds=1), timedelta(seconds=1), -10 * HOUR):
        hand.now += step
        log.write(attempted(), OK)
        counts.append(len(files(tmp_path)))
    assert counts == [1, 1, 2, 3]

    monkeypatch.setattr(attempt_log, "MAX_FILE", 1)
    hand.now += timedelta(seconds=1)
    log.write(attempted(), OK)
    assert len(files(tmp_path)) == 4


def test_files_are_deleted_after_the_lifetime_of_their_last_line(
    opened: Callable[[], FileAttemptLog], tmp_path: Path, hand: Hand
) -> None:
    log = opened()
    log.write(attempted(1), OK)
    hand.now += 25 * HOUR
    log.write(attempted(2), OK)
    assert numbers(tmp_path) == [1, 2]

    hand.now += HOUR + timedelta(seconds=1)
    log.write(attempted(3), OK)
    assert numbers(tmp_path) == [2, 3]


def test_beyond_the_bytes_the_oldest_go_but_none_that_a_process_may_write_to(
    opened: Callable[[], FileAttemptLog], tmp_path: Path, hand: Hand
) -> None:
    log = opened()
    for number in range(5):
        log.write(attempted(number), OK)
        hand.now += HOUR
    oldest_first = files(tmp_path)
    length = oldest_first[0].stat().st_size

    some = replace(LIMITS, most_bytes=4 * length)
    assert outlived(tmp_path / "log", some, hand.now) == oldest_first[:1]
    none = replace(LIMITS, most_bytes=0)
    assert outlived(tmp_path / "log", none, hand.now) == oldest_first[:4]
    # The last file is one hour old: its process may still have it open.


def test_what_others_put_into_the_folder_stays(
    opened: Callable[[], FileAttemptLog], tmp_path: Path, hand: Hand
) -> None:
    log = opened()
    for name in ("notes.txt", "attempts-yesterday-1.jsonl"):
        (tmp_path / "log" / name).write_text("x")
    hand.now += 1000 * HOUR
    log.write(attempted(), OK)

    assert {"notes.txt", "attempts-yesterday-1.jsonl"} <= {each.name for each in files(tmp_path)}


def test_a_full_disk_is_counted_and_afterwards_the_log_goes_on(
    opened: Callable[[], FileAttemptLog],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = opened()
    before = UNLOGGED_ATTEMPTS.labels("", "out")._value.get()
    whole = os.write
    room = [10]

    def short(file: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(file, data[: room.pop()])

    with monkeypatch.context() as full:
        full.setattr(os, "write", short)
        log.write(attempted(1), OK)
        log.write(attempted(2), OK)
    log.write(attempted(3), OK)
    log.write(attempted(4), OK)

    assert numbers(tmp_path) == [None, 3, 4], "the half line takes no other with it"
    assert len(files(tmp_path)) == 1
    assert UNLOGGED_ATTEMPTS.labels("", "out")._value.get() == before + 2
    assert [each.message for each in caplog.records].count("attempt log not written") == 1


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidSettings, match="attempt log") as caught:
        FileAttemptLog(tmp_path / "file" / "log", LIMITS, Hand())
    assert "POSTROAD_WORKER_ATTEMPT_LOG" in caught.value.explain()


@pytest.mark.parametrize("line", ["{", "[]", "1", '{"at": 1}', '{"at": "now"}', "\udcff"])
def test_what_is_no_line_is_reported_and_stops_nothing(
    opened: Callable[[], FileAttemptLog], tmp_path: Path, line: str
) -> None:
    log = opened()
    log.write(attempted(1), OK)
    (path,) = files(tmp_path)
    with path.open("ab") as end:
        end.write(line.encode(errors="surrogateescape") + b"\n")
    log.write(attempted(2), OK)

    assert numbers(tmp_path) == [1, None, 2]


def test_files_that_ended_before_are_not_read(
    opened: Callable[[], FileAttemptLog], tmp_path: Path, hand: Hand
) -> None:
    log = opened()
    for number in (1, 2, 3):
        log.write(attempted(number), OK)
        hand.now += 3 * HOUR

    found = [each.attempt for each in read_attempts(tmp_path / "log", NOON + 4 * HOUR) if each]
    assert found == [2, 3]
