"""`postroad config`: what it prints, its exit codes, and the way out of a lost history."""

from __future__ import annotations

import asyncio
import json
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from contract.view_contract import entry
from postroad import open_queue
from postroad.adapters.memory.view import MemoryView
from postroad.bootstrap.distributed import open_history
from postroad.cli import main
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import Partition
from postroad.domain.queues.names import QueueName
from postroad.errors import ConfigurationRefused, InvalidSettings, ViewUnavailable
from postroad.ports.view import ClosedSlice

NOON = datetime(2100, 3, 1, 12, tzinfo=UTC)
"""Later than content start, which is that of a queue made now."""
HOUR, HALF, ODD = (
    ViewConfiguration(timedelta(minutes=60), 1),
    ViewConfiguration(timedelta(minutes=30), 4),
    ViewConfiguration(timedelta(minutes=25), 4),
)


def want(url: str, *configurations: ViewConfiguration) -> None:
    async def opened() -> None:
        for configuration in configurations:
            try:
                async with open_queue(url, create=True, configuration=configuration):
                    pass
            except ConfigurationRefused:
                pass

    asyncio.run(opened())


@pytest.fixture
def url() -> str:
    """A queue that was changed once, and refused a change once."""
    url = f"memory://t{secrets.token_hex(4)}"
    want(url, HOUR, HALF, ODD)
    return url


async def test_open_history_in_memory_reads_no_settings_of_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POSTROAD_CASSANDRA_PORT", "none")

    async with open_history("memory://unset") as opened:
        assert opened.name == QueueName("memory", "unset")
    with pytest.raises(InvalidSettings, match="POSTROAD_CASSANDRA_PORT"):
        async with open_history("distributed://mail.unset"):
            pass


def lose_history(url: str) -> None:
    async def lose() -> None:
        async with open_history(url) as opened:
            await opened.history.erase()

    asyncio.run(lose())


def run(*arguments: str, content: str | None = None) -> Result:
    return CliRunner().invoke(main, ["config", *arguments], input=content)


def read(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_show_says_what_is_accepted_and_how_far_it_has_spread(url: str) -> None:
    (shown,) = read("show", url)

    assert shown | {"queue": "", "accepted_at": ""} == {
        "queue": "",
        "accepted_at": "",
        "version": 2,
        "sliceWindow": "30m",
        "bucketCount": 4,
        "updateBrowseStartPace": 1000,
        "writing_version": 1,
        "oldest_version": 1,
    }
    assert "still written under version 1" in run("show", url).output


def test_history_lists_all_changes_accepted_and_refused(url: str) -> None:
    listed = read("history", url)

    assert [(each["type"], each.get("version")) for each in listed] == [
        ("ConfigurationCreated", 1),
        ("ConfigurationChanged", 2),
        ("ConfigurationRefused", None),
    ]
    text = run("history", url).output
    assert "sliceWindow 1h -> 30m, bucketCount 1 -> 4" in text
    assert "the nearest allowed values are 15m and 30m" in text


@pytest.mark.parametrize(
    ("options", "outcome", "code"),
    [
        pytest.param(["--slice-window", "15m"], "changed", 0, id="allowed"),
        pytest.param(["--bucket-count", "4"], "unchanged", 0, id="the same"),
        pytest.param(["--slice-window", "25m"], "refused", 1, id="does not divide"),
        pytest.param(["--slice-window", "1h"], "refused", 1, id="grows"),
        pytest.param(["--bucket-count", "3"], "refused", 1, id="shrinks"),
    ],
)
def test_check_says_what_would_happen_and_changes_nothing(
    url: str, options: list[str], outcome: str, code: int
) -> None:
    before = read("history", url)

    result = run("check", url, *options, "--json")

    assert result.exit_code == code
    assert json.loads(result.stdout)["outcome"] == outcome
    assert read("history", url) == before


def test_check_names_the_nearest_allowed_values(url: str) -> None:
    result = run("check", url, "--slice-window", "25m", "--bucket-count", "2", "--json")

    assert json.loads(result.stdout)["allowed"] == {
        "sliceWindow": ["15m", "30m"],
        "bucketCount": ["4"],
    }


@pytest.mark.parametrize("window", ["0s", "half an hour"])
def test_check_of_what_no_queue_could_accept_is_an_error(url: str, window: str) -> None:
    assert run("check", url, "--slice-window", window).exit_code != 0


def test_a_queue_without_a_history_would_be_created() -> None:
    result = run("check", f"memory://t{secrets.token_hex(4)}", "--slice-window", "7m", "--json")

    assert json.loads(result.stdout)["outcome"] == "created"


def close_slices(url: str, *rows: int, mails: int = 0) -> None:
    """Close slices of an hour that had so many rows each; the first has some rows to look at."""

    async def close() -> None:
        async with open_history(url) as opened:
            for number, count in enumerate(rows):
                counts = {0: count // 2, 1: count - count // 2}
                closed = ClosedSlice(NOON + number * timedelta(hours=1), HOUR.slice_window, counts)
                await opened.view.close_slice(closed)
            for number in range(mails):
                await opened.view.insert(entry(number, Partition(NOON, 0)))

    asyncio.run(close())


def test_check_advises_and_says_what_it_looked_at(url: str) -> None:
    close_slices(url, 120_000, *[5] * 23, mails=3)
    before = read("history", url)

    (found,) = read("check", url)

    advice = found["advice"]
    assert advice["sliceWindow"] | {"reason": ""} == {"present": "30m", "value": "5m", "reason": ""}
    assert "120,000 rows in 1h" in advice["sliceWindow"]["reason"]
    assert advice["bucketCount"] | {"reason": ""} == {"present": 4, "value": 4, "reason": ""}
    assert advice["closed_slices"] == 24
    assert advice["since"] == "2100-03-01T12:00:00.000Z"
    assert advice["enough_history"] is True
    assert advice["busiest_slice"] == {
        "start": "2100-03-01T12:00:00.000Z",
        "window": "1h",
        "rows": 120_000,
    }
    assert 100 < advice["row_bytes"] < 1000
    assert advice["cassandra_hosts"] == 1
    assert read("history", url) == before


def test_advice_is_read_as_text(url: str) -> None:
    close_slices(url, 120_000)

    lines = run("check", url, "--slice-window", "15m").output.splitlines()

    assert lines[0].endswith(": changed")
    assert lines[3:] == [
        "  advice, from 1 closed slice since 2100-03-01T12:00:00.000Z:",
        (
            "    sliceWindow: 30m -> 5m; the busiest slice held 120,000 rows in 1h; at its rate 5m "
            "holds about 10,000; about 10,000 is the aim; too little history: the slices cover "
            "less than a day, and a busier one may not be among them"
        ),
        "    bucketCount: keep 4; Cassandra has 1 host; buckets cannot become fewer",
    ]


def test_advice_without_history_says_that_there_is_too_little(url: str) -> None:
    (found,) = read("check", url)

    assert found["advice"]["closed_slices"] == 0
    assert found["advice"]["since"] is found["advice"]["busiest_slice"] is None
    assert "too little history" in found["advice"]["sliceWindow"]["reason"]
    assert "advice, from 0 closed slices:" in run("check", url).output


@pytest.mark.parametrize(("window", "code"), [("15m", 0), ("25m", 1)])
def test_a_check_is_answered_without_advice_where_the_view_cannot_be_read(
    url: str, monkeypatch: pytest.MonkeyPatch, window: str, code: int
) -> None:
    async def refuse(_: MemoryView) -> int:
        raise ViewUnavailable("no host answers")

    monkeypatch.setattr(MemoryView, "hosts", refuse)

    result = run("check", url, "--slice-window", window, "--json")

    assert result.exit_code == code
    assert json.loads(result.stdout)["advice"] is None
    assert "no advice" in result.stderr


def test_a_lost_history_is_an_error_and_not_taken_for_a_new_queue(url: str) -> None:
    lose_history(url)

    for command in ("show", "history", "check"):
        result = CliRunner().invoke(main, ["config", command, url])
        assert result.exit_code == 1
        assert "postroad config adopt" in result.output


def test_adopt_brings_back_what_the_status_remembers(url: str) -> None:
    remembered = read("history", url)
    lose_history(url)
    resource = json.dumps({"kind": "MailQueue", "status": {"history": remembered}})

    result = run("adopt", url, "--reason", "lost", "--status", "-", content=resource)

    assert result.exit_code == 0, result.output
    listed = read("history", url)
    assert listed[:-1] == remembered
    assert listed[-1]["type"] == "ConfigurationAdopted"
    assert (listed[-1]["sliceWindow"], listed[-1]["message"]) == ("30m", "lost")


def test_adopt_takes_a_configuration_where_nothing_is_remembered(url: str) -> None:
    lose_history(url)

    window_alone = run("adopt", url, "--reason", "lost", "--slice-window", "30m")
    result = run(
        *("adopt", url, "--reason", "lost", "--slice-window", "30m", "--bucket-count", "4")
    )

    assert window_alone.exit_code == 2
    assert result.exit_code == 0, result.output
    assert read("show", url)[0]["bucketCount"] == 4


@pytest.mark.parametrize("reason", ["x" * 899, "\u00e4" * 150])
def test_a_reason_that_is_too_long_is_refused_before_a_server_is_needed(reason: str) -> None:
    options = ("--slice-window", "30m", "--bucket-count", "4")

    result = run("adopt", "distributed://mail.nowhere", "--reason", reason, *options)

    assert result.exit_code == 1
    assert "the reason is too long" in result.output
    assert "at most 900 bytes" in result.output


def test_the_longest_reason_is_adopted_and_shown(url: str) -> None:
    lose_history(url)
    options = ("--slice-window", "30m", "--bucket-count", "4")

    result = run("adopt", url, "--reason", "x" * 898, *options)

    assert result.exit_code == 0, result.output
    assert read("history", url)[-1]["message"] == "x" * 898


def test_there_is_nothing_to_adopt_while_nothing_is_lost(url: str) -> None:
    result = run("adopt", url, "--reason", "x", "--slice-window", "30m", "--bucket-count", "9")

    assert result.exit_code == 1
    assert "nothing to adopt" in result.output


def test_an_embedded_queue_has_no_view_configuration() -> None:
    result = CliRunner().invoke(main, ["config", "show", "embedded:///nowhere"])

    assert result.exit_code == 2
    assert "no configuration history" in result.output
