"""Which commands keep a queue up."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from postroad.cli import background_maintenance, intake, long_running
from postroad.ports.mail_queue import MailQueue
from postroad.settings import Intake, Settings

SETTINGS = Settings(health_port=0, intake=Intake(host="127.0.0.1", port=0))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[str]:
    """The names of queues that are being kept up."""
    kept: asyncio.Queue[str] = asyncio.Queue()

    async def run_maintenance(queue: MailQueue, *_: object) -> None:
        await kept.put(queue.name)
        try:
            await asyncio.Event().wait()
        finally:
            kept.put_nowait("ended")

    monkeypatch.setattr(background_maintenance, "run_maintenance", run_maintenance)
    return kept


async def test_an_intake_keeps_its_queue_up_since_there_may_be_no_worker(
    kept: asyncio.Queue[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    running = asyncio.create_task(intake._receive(SETTINGS, "memory://q", True))

    assert await asyncio.wait_for(kept.get(), 5) == "memory.q"
    while "listening" not in caplog.messages:
        assert not running.done(), running
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])


async def test_a_receiver_leaves_the_maintenance_to_the_process_that_it_receives_for(
    kept: asyncio.Queue[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent, end = os.pipe()
    monkeypatch.setattr(intake, "STANDARD_INPUT", parent)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        inherited = listening.dup()
        work = intake._receive(SETTINGS, "memory://q", True, {inherited.detach(): False})
        running = asyncio.create_task(work)
        while "listening" not in capsys.readouterr().out:
            assert not running.done(), running
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
    os.close(parent)
    os.close(end)

    assert kept.empty()


async def test_no_round_begins_once_the_process_is_to_end(kept: asyncio.Queue[str]) -> None:
    async with long_running.process(SETTINGS, "memory://q", create=True) as this:
        assert this is not None
        async with background_maintenance.background_maintenance(this):
            await kept.get()
            this.stop.set()
            assert await asyncio.wait_for(kept.get(), 5) == "ended"
