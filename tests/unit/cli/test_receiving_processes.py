"""Processes that receive for another one: what ends them, and what their ends mean."""

from __future__ import annotations

import asyncio
import os
import socket
from asyncio.subprocess import PIPE
from asyncio.subprocess import Process as Child
from collections.abc import Iterator
from datetime import timedelta

import pytest

from postroad import open_queue
from postroad.cli.processes import intake, long_running
from postroad.cli.processes.intake import receive_in_children
from postroad.cli.processes.long_running import Inheritance, Process, process
from postroad.errors import ReceiverEnded, StoreUnavailable
from postroad.settings import Settings
from postroad.settings.intake import Intake
from postroad.telemetry.health import Readiness

SETTINGS = Settings(health_port=0, intake=Intake(host="127.0.0.1", port=0))


class Parent:
    """A parent, and what its child inherited from it as standard input."""

    def __init__(self) -> None:
        self.inherited, self._own = os.pipe()

    def end(self) -> None:
        os.close(self._own)


@pytest.fixture
def parent() -> Iterator[Parent]:
    parent = Parent()
    yield parent
    os.close(parent.inherited)


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone before", "goes meanwhile"])
async def test_a_receiver_whose_parent_goes_ends_though_its_queue_never_opens(
    parent: Parent,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_gone: bool,
) -> None:
    tried: list[str] = []

    async def never(url: str, **_: object) -> None:
        if not (is_gone or tried):
            parent.end()
        tried.append(url)
        raise StoreUnavailable

    monkeypatch.setattr(long_running, "open_queue", never)
    monkeypatch.setattr(intake, "STANDARD_INPUT", parent.inherited)
    if is_gone:
        parent.end()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        work = intake._receive(SETTINGS, "memory://q", False, None, [("smtp", listening.fileno())])
        await asyncio.wait_for(work, 60)

    assert len(tried) <= 1, "no process is left that needs it"
    assert "listening" not in capsys.readouterr().out


async def test_the_end_of_the_parent_is_read_once(parent: Parent) -> None:
    """It stays readable: who goes on watching it does nothing else while mails are finished."""
    descriptor = parent.inherited
    inheritance = Inheritance(descriptor)
    async with process(SETTINGS, "memory://q", create=True, inheritance=inheritance) as this:
        assert this is not None
        parent.end()
        await asyncio.wait_for(this.stop.wait(), 60)
        assert not asyncio.get_running_loop().remove_reader(descriptor)


async def this_process() -> Process:
    queue = await open_queue("memory://q", create=True)
    return Process(Readiness(), asyncio.Event(), timedelta(seconds=1), queue)


async def start_and_end(*_: object) -> Child:
    """Start a child that ends before it listens."""
    return await asyncio.create_subprocess_exec("true", stdin=PIPE, stdout=PIPE)


async def test_a_receiver_that_ends_by_itself_ends_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "_start", start_and_end)

    with pytest.raises(ReceiverEnded):
        await asyncio.wait_for(
            receive_in_children(await this_process(), SETTINGS, "memory://q", None, 2), 20
        )


async def test_a_process_stopped_before_its_receivers_listen_ends_in_good_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGTERM to all of them, as from a service manager."""
    started: list[Child] = []

    async def start(*_: object) -> Child:
        started.append(await start_and_end())
        return started[-1]

    monkeypatch.setattr(intake, "_start", start)
    this = await this_process()
    this.stop.set()

    await asyncio.wait_for(receive_in_children(this, SETTINGS, "memory://q", None, 2), 60)

    assert len(started) == 2
    assert None not in [child.returncode for child in started], "none of them is left running"
