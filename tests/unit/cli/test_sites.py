"""Sites, as commands show, suspend and resume them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postroad.adapters.clocks import MachineClock
from postroad.adapters.disk.shared_state import DirectorySharedState
from postroad.bootstrap import open_queue
from postroad.cli import main
from postroad.domain.delivery.sites import SiteState, SiteView, published_views
from postroad.ports.delivery import Topic

MINUTE = timedelta(minutes=1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    async def create() -> None:
        async with open_queue(f"embedded://{tmp_path}/store", create=True):
            pass

    asyncio.run(create())
    return tmp_path / "store"


def run(store: Path, command: str, *options: str) -> Result:
    return CliRunner().invoke(main, [command, "--queue", f"embedded://{store}", *options])


def publish(store: Path, worker: str, *views: SiteView) -> None:
    shared_state = DirectorySharedState(store / "shared_state", MachineClock())
    asyncio.run(shared_state.publish(Topic.WORKERS, worker, published_views(views), MINUTE))


def test_a_site_is_suspended_shown_and_resumed(store: Path) -> None:
    publish(store, "w1", SiteView("mx.example", SiteState.ACTIVE, 2, 5, 1, reply="250 2.0.0 ok"))
    publish(store, "w2", SiteView("mx.example", SiteState.IDLE), SiteView("b", SiteState.WAITING))

    suspended = run(store, "suspend", "mx.example", "--for", "2h", "--reason", "they  asked")
    assert suspended.exit_code == 0, suspended.output
    assert suspended.output.startswith("mx.example gets no mail until 20")
    assert "no worker shows" not in suspended.output
    elsewhere = run(store, "suspend", "elsewhere", "--for", "1h", "--reason", "x")
    assert "no worker shows a site of this name" in elsewhere.output

    lines = [json.loads(line) for line in run(store, "sites", "--json").output.splitlines()]
    assert [(each["worker"], each["site"], each["state"]) for each in lines] == [
        (None, "elsewhere", "suspended"),
        ("w1", "mx.example", "suspended"),
        ("w2", "mx.example", "suspended"),
        ("w2", "b", "waiting"),
    ]
    assert lines[1]["reason"] == "administrator: they asked"
    assert (lines[1]["connections"], lines[1]["waiting"], lines[1]["at_work"]) == (2, 5, 1)

    resumed = run(store, "resume", "mx.example")
    assert resumed.output.startswith("mx.example gets mail again within 5s")
    shown = run(store, "sites").output.splitlines()[1:]
    assert [line.split()[0] for line in shown] == ["suspended", "active", "waiting", "idle"]
    assert "250 2.0.0 ok" in shown[1]
    again = run(store, "resume", "mx.example")
    assert again.exit_code == 1
    assert "mx.example is not suspended" in again.output


@pytest.mark.parametrize(
    ("site", "duration", "reason", "problem"),
    [
        ("a", "721h", "x", "suspended for 1s to 720h"),
        ("a", "0s", "x", "suspended for 1s to 720h"),
        ("a", "1h", " ", "1 to 200 printable"),
        ("a", "1h", "x" * 201, "1 to 200 printable"),
        ("a", "1h", "x\x1b[2J", "1 to 200 printable"),
        ("", "1h", "x", "no name of a site"),
        ("a\x07", "1h", "x", "no name of a site"),
        ("a" * 321, "1h", "x", "no name of a site"),
    ],
)
def test_what_makes_no_suspension_is_refused(
    store: Path, site: str, duration: str, reason: str, problem: str
) -> None:
    result = run(store, "suspend", site, "--for", duration, "--reason", reason)

    assert result.exit_code == 1
    assert problem in result.output


def test_notes_that_cannot_be_read_are_passed_over(store: Path) -> None:
    shared_state = DirectorySharedState(store / "shared_state", MachineClock())
    asyncio.run(shared_state.publish(Topic.WORKERS, "w", "{}", MINUTE))
    asyncio.run(shared_state.publish(Topic.SUSPENSIONS, "a", "{}", MINUTE))

    assert "no worker has shown a site" in run(store, "sites").output


def test_a_site_is_flushed_by_what_its_workers_answer(store: Path) -> None:
    no_worker = run(store, "flush", "--site", "mx.example")
    assert no_worker.exit_code == 1
    assert "no worker of this queue runs" in no_worker.output
    both = run(store, "flush", "--site", "mx.example", "--domain", "a.example")
    assert both.exit_code == 2
    assert "--site cannot be combined" in both.output
    odd = run(store, "flush", "--site", "a\x07")
    assert "no name of a site" in odd.output
    run(store, "suspend", "mx.example", "--for", "1h", "--reason", "they asked")
    suspended = run(store, "flush", "--site", "mx.example")
    assert "postroad resume mx.example" in suspended.output
    assert run(store, "flush", "--domain", "a.example").output == "flushed 0 mails\n"
