"""`postroad trace`: what it finds, and what it tells when it finds nothing."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from postroad.adapters.disk.attempt_log import FileAttemptLog, LogLimits
from postroad.cli import main
from postroad.cli.mail.tracing import trace
from postroad.domain.delivery.attempts import Attempted
from postroad.domain.mail.mail import Outcome, OutcomeKind

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
DEFERRED = Outcome(OutcomeKind.DEFERRED, "451 4.7.1 greylisted", "mx.example.net")
DELIVERED = Outcome(OutcomeKind.DELIVERED, "250 2.0.0 ok", "mx.example.net")


def write(folder: Path, *, with_addresses: bool = True, at: datetime = NOON) -> None:
    limits = LogLimits(timedelta(days=1), 2**30, with_addresses)
    log = FileAttemptLog(folder, limits, lambda: at)
    for number, outcome in ((2, DELIVERED), (1, DEFERRED)):
        ended = at + timedelta(minutes=number)
        attempted = Attempted(
            "out", UUID(int=2), UUID(int=1), number, "a@x.example", 9, at, ended, 0.5
        )
        log.write(attempted, {"b@example.net": outcome, "c@example.org": outcome})
    log.close()


def run(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(trace, ["--log", str(folder), *options])


def test_the_attempts_of_a_recipient_are_printed_in_order_of_time(tmp_path: Path) -> None:
    write(tmp_path)

    found = run(tmp_path, "--recipient", "B@example.net")
    _, first, second = found.stdout.splitlines()
    assert re.search(r"a@x.example +b@example.net +1 +deferred \(greylisted\) +1m ", first)
    assert re.search(r" 2 +delivered +2m +mx\.example\.net +250 2\.0\.0 ok", second)


def test_json_has_the_whole_line(tmp_path: Path) -> None:
    write(tmp_path)

    found = run(tmp_path, "--domain", "example.org", "--outcome", "delivered", "--json")
    (document,) = map(json.loads, found.stdout.splitlines())
    assert (document["recipient"], document["attempt"]) == ("c@example.org", 2)


def test_a_search_by_address_in_a_log_without_addresses_tells_what_to_search_by(
    tmp_path: Path,
) -> None:
    write(tmp_path, with_addresses=False)

    found = CliRunner().invoke(
        main, ["trace", "--log", str(tmp_path), "--recipient", "b@example.net"]
    )
    assert found.exit_code == 1
    assert "--domain" in found.stderr
    assert "POSTROAD_WORKER_ATTEMPT_LOG_ADDRESSES" in found.stderr
    assert len(run(tmp_path, "--domain", "example.net").stdout.splitlines()[1:]) == 2


@pytest.mark.parametrize("what", ["B@example.net", str(UUID(int=1)), str(UUID(int=2))])
def test_an_address_or_an_id_of_mail_or_entry_is_found_in_the_log(
    tmp_path: Path, what: str
) -> None:
    write(tmp_path)

    lines = run(tmp_path, what).stdout.splitlines()[1:]

    assert len(lines) == (2 if "@" in what else 4)
    assert all("b@example.net" in line for line in lines) == ("@" in what)


def test_a_sender_is_found_by_its_address(tmp_path: Path) -> None:
    write(tmp_path)

    assert len(run(tmp_path, "a@x.example").stdout.splitlines()[1:]) == 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "--recipient"),
        (("nothing",), "neither an id nor an address"),
        (("--within", "1h", "--from", "2026-01-02T00:00:00Z"), "--from or --within"),
        (("--from", "2026-01-32"), "2026-11-26T10:00Z"),
        (("a@x.example", "--lake", "lake"), "--log and --lake"),
    ],
)
def test_a_search_that_names_nothing_or_two_places_is_refused(
    tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    found = run(tmp_path, *options)
    assert (found.exit_code, text in found.stderr) == (2, True)


def test_without_a_log_and_a_queue_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROAD_QUEUE", raising=False)
    found = CliRunner().invoke(trace, ["a@x.example"])
    assert found.exit_code == 2
    assert "--log" in found.stderr
    assert "--queue" in found.stderr


def test_a_queue_of_the_command_line_stands_before_a_log_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.setenv("POSTROAD_WORKER_ATTEMPT_LOG", str(tmp_path))
    monkeypatch.setenv("POSTROAD_QUEUE", "embedded:///nowhere")

    assert len(CliRunner().invoke(trace, ["a@x.example"]).stdout.splitlines()[1:]) == 4
    found = CliRunner().invoke(main, ["trace", "a@x.example", "--queue", "embedded:///nowhere"])
    assert (found.exit_code, "--lake" in found.stderr) == (1, True)


def test_a_log_that_is_not_there_is_named_but_not_where_a_queue_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_WORKER_ATTEMPT_LOG", str(tmp_path / "none"))

    found = CliRunner().invoke(main, ["trace", "a@x.example"])
    assert (found.exit_code, "no folder of an attempt log" in found.stderr) == (1, True)
    found = CliRunner().invoke(main, ["trace", "a@x.example", "--queue", "embedded:///nowhere"])
    assert (found.exit_code, "attempt log with --log" in found.stderr) == (1, True)


def test_a_search_ends_before_a_moment(tmp_path: Path) -> None:
    write(tmp_path)

    lines = run(tmp_path, "--to", "2026-01-02T12:02:00Z").stdout.splitlines()[1:]

    assert [line.split()[4] for line in lines] == ["1", "1"]


def test_nothing_found_is_one_note_and_what_cannot_be_read_another(tmp_path: Path) -> None:
    write(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text() + '{"torn')

    found = run(tmp_path, "--domain", "example.com")
    assert (found.stdout, found.exit_code) == ("", 0)
    assert "no attempt fits: 4 lines were searched; mail that was not" in found.stderr
    assert "1 lines cannot be read" in found.stderr


@pytest.mark.parametrize(("hours", "count"), [(1, 0), (3, 4), (99_999_999, 4)])
def test_within_is_counted_from_now(tmp_path: Path, hours: int, count: int) -> None:
    write(tmp_path, at=datetime.now(UTC) - timedelta(hours=2))
    found = run(tmp_path, "--within", f"{hours}h")
    assert len(found.stdout.splitlines()[1:]) == count


def test_what_a_next_hop_writes_moves_no_terminal(tmp_path: Path) -> None:
    log = FileAttemptLog(tmp_path, LogLimits(timedelta(days=1), 2**30, True), lambda: NOON)
    attempted = Attempted("out", UUID(int=2), UUID(int=1), 1, None, 9, NOON, NOON, 0.5)
    log.write(attempted, {"b@example.net": Outcome.failed("550 \x1b[2J gone")})

    assert "\\u001b[2J" in run(tmp_path, "--domain", "example.net").stdout
