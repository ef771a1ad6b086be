"""`kubectl mailqueue adopt` and `postroad config` over a real Cassandra: a lost history is found
and continued."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner, Result

import servers
from postroad.administration.configuration import ConfigurationOf
from postroad.bootstrap.distributed import open_history
from postroad.cli import kubectl_mailqueue, main
from postroad.configuration import Settled, settle
from postroad.domain.configuration.documents import Document
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.ports.view import ClosedSlice
from support import fake_kubectl
from support.fake_kubectl import folder
from support.keyspaces import keyspace

__all__ = ["folder", "keyspace"]

pytestmark = pytest.mark.needs("cassandra")

T = TypeVar("T")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR, HALF = (ViewConfiguration(timedelta(minutes=each), 2) for each in (60, 30))


@pytest.fixture
def name(keyspace: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A queue of the namespace `mail` with rows, whose history only the status has."""
    monkeypatch.setenv("POSTROAD_CASSANDRA_KEYSPACE", keyspace)
    return servers.fresh()


def at(name: str, work: Callable[[ConfigurationOf], Awaitable[T]]) -> T:
    async def session() -> T:
        async with open_history(f"mail.{name}") as opened:
            return await work(opened)

    return asyncio.run(session())


def lose(name: str) -> list[Document]:
    """Accept two configurations, begin the queue, lose the history; return the status' copy."""

    async def work(opened: ConfigurationOf) -> list[Document]:
        for wanted in (HOUR, HALF):
            settled = await settle(opened.history, wanted, at=NOW, by="operator")
        await opened.view.advance(browse_start=NOW, content_start=NOW)
        await opened.history.erase()
        return settled.entries()

    return at(name, work)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["config", *arguments])


def test_a_lost_history_is_brought_back_and_the_queue_goes_on(name: str, folder: Path) -> None:
    status = lose(name)
    fake_kubectl.put(folder, name, status)
    lost = run("show", f"mail.{name}")

    adopted = CliRunner().invoke(kubectl_mailqueue, ["adopt", name, "--reason", "dropped"])
    listed = run("history", f"mail.{name}", "--json")

    assert lost.exit_code == 1
    assert "adopt" in lost.output
    assert adopted.exit_code == 0, adopted.output
    found = [json.loads(line) for line in listed.stdout.splitlines()]
    assert found[:-1] == status
    assert (found[-1]["type"], found[-1]["version"]) == ("ConfigurationAdopted", 3)

    async def resync(opened: ConfigurationOf) -> Settled:
        return await settle(opened.history, HALF, at=NOW, by="operator", status=status)

    assert at(name, resync).refusal is None
    assert run("check", f"mail.{name}", "--slice-window", "1h").exit_code == 1


def test_an_adoption_cannot_leave_closed_slices_unread(name: str, folder: Path) -> None:

    lose(name)

    async def close(opened: ConfigurationOf) -> None:
        await opened.view.close_slice(ClosedSlice(NOW, HALF.slice_window, {0: 1, 5: 1}))

    at(name, close)
    options = ("--reason", "dropped", "--slice-window", "30m", "--bucket-count")

    refused = run("adopt", f"mail.{name}", *options, "5")
    accepted = run("adopt", f"mail.{name}", *options, "6")

    assert refused.exit_code == 1
    assert "30m and 6 buckets" in refused.output
    assert accepted.exit_code == 0, accepted.output
