"""`postroad config`: what it prints, its exit codes, and the way out of a lost history."""

from __future__ import annotations

import asyncio
import json
import secrets
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from postroad import open_queue
from postroad.bootstrap.histories import open_history
from postroad.cli import main
from postroad.domain.configuration_rules import ViewConfiguration
from postroad.errors import ConfigurationRefused

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


def test_a_queue_that_nobody_created_would_be_created() -> None:
    result = run("check", f"memory://t{secrets.token_hex(4)}", "--slice-window", "7m", "--json")

    assert json.loads(result.stdout)["outcome"] == "created"


def test_a_lost_history_is_said_and_not_taken_for_a_new_queue(url: str) -> None:
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


def test_adopt_takes_a_persons_word_where_nothing_is_remembered(url: str) -> None:
    lose_history(url)

    half_a_word = run("adopt", url, "--reason", "lost", "--slice-window", "30m")
    result = run(
        *("adopt", url, "--reason", "lost", "--slice-window", "30m", "--bucket-count", "4")
    )

    assert half_a_word.exit_code == 2
    assert result.exit_code == 0, result.output
    assert read("show", url)[0]["bucketCount"] == 4


def test_there_is_nothing_to_adopt_while_nothing_is_lost(url: str) -> None:
    result = run("adopt", url, "--reason", "x", "--slice-window", "30m", "--bucket-count", "9")

    assert result.exit_code == 1
    assert "nothing to adopt" in result.output


def test_an_embedded_queue_has_no_view_configuration() -> None:
    result = CliRunner().invoke(main, ["config", "show", "embedded:///nowhere"])

    assert result.exit_code == 2
    assert "no configuration history" in result.output
