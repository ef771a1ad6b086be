"""Which commands run maintenance of a queue."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from postroad.cli.processes import intake, long_running
from postroad.ports.mail_queue import MailQueue
from postroad.settings import Settings
from postroad.settings.intake import Intake

SETTINGS = Settings(health_port=0, intake=Intake(host="127.0.0.1", port=0))


@pytest.fixture
def maintained(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[str]:
    """Names of the queues under maintenance."""
    maintained: asyncio.Queue[str] = asyncio.Queue()

    async def run_maintenance(queue: MailQueue, *_: object) -> None:
        await maintained.put(queue.name)
        try:
            await asyncio.Event().wait()
        finally:
            maintained.put_nowait("ended")

    monkeypatch.setattr(long_running, "run_maintenance", run_maintenance)
    return maintained


async def test_an_intake_maintains_its_queue_because_no_worker_may_run(
    maintained: asyncio.Queue[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    running = asyncio.create_task(intake._receive(SETTINGS, "memory://q", True, None))

    assert await asyncio.wait_for(maintained.get(), 60) == "memory.q"
    while "listening" not in caplog.messages:
        assert not running.done(), running
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])


async def test_a_receiver_leaves_maintenance_to_its_parent(
    maintained: asyncio.Queue[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent, end = os.pipe()
    monkeypatch.setattr(intake, "STANDARD_INPUT", parent)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        inherited = listening.dup()
        work = intake._receive(SETTINGS, "memory://q", True, None, [("smtp", inherited.detach())])
        running = asyncio.create_task(work)
        while "listening" not in capsys.readouterr().out:
            assert not running.done(), running
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
    os.close(parent)
    os.close(end)

    assert maintained.empty()


async def test_no_round_begins_once_the_process_is_to_end(maintained: asyncio.Queue[str]) -> None:
    async with long_running.process(SETTINGS, "memory://q", create=True) as this:
        assert this is not None
        async with long_running.background_maintenance(this):
            await maintained.get()
            this.stop.set()
            assert await asyncio.wait_for(maintained.get(), 60) == "ended"
