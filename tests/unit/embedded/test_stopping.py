"""A store that has stopped takes nothing more, wherever it would have gone (FORMAT.md R6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import pytest

from contract.queue_harness import plain_mail
from crash.lossy import LossyFiles
from crash.world import ROOT, Inline, start
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.spool_writing import SpoolWriter
from postroad.errors import QueueClosed, StoreFailed

T = TypeVar("T")


class StopsMeanwhile(Inline):
    """Work during which the store stops."""

    def __init__(self, engine: Engine, error: Exception) -> None:
        self._engine, self._error = engine, error

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        result = await super().run(work, *arguments)
        self._engine.stop(self._error)
        return result


@pytest.mark.parametrize("delay", [timedelta(0), timedelta(hours=1)], ids=["known", "unused"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StoreFailed("Input/output error"), StoreFailed),
        (QueueClosed(), QueueClosed),
        (RuntimeError("a bug"), StoreFailed),
    ],
)
async def test_a_mail_that_was_stored_meanwhile_is_refused(
    error: Exception, told: type[Exception], delay: timedelta
) -> None:
    """Also one for a lane without a segment."""
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    await queue.enqueue(plain_mail())
    names = set(files.disk.names[ROOT / "log"])
    engine = queue.engine
    engine.spool_writer = SpoolWriter(engine.spool_files, StopsMeanwhile(engine, error))

    with pytest.raises(told):
        await queue.enqueue(plain_mail(), delay)

    assert set(files.disk.names[ROOT / "log"]) == names
    await queue.close()


async def test_a_checkpoint_that_cannot_be_written_stops_the_store() -> None:
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    await queue.enqueue(plain_mail())
    files.fail[files.calls + 1] = StoreFailed("Input/output error")

    with pytest.raises(StoreFailed):
        await queue.maintenance.checkpoint()

    with pytest.raises(StoreFailed):
        await queue.enqueue(plain_mail())
    await queue.close()


async def test_a_consumer_that_waits_ends_with_the_store() -> None:
    queue = await start(LossyFiles())
    await queue.maintenance.recovering
    waiting = asyncio.ensure_future(queue.consumer(1).next())
    await asyncio.sleep(0.01)

    queue.engine.stop(StoreFailed("Input/output error"))

    with pytest.raises(StoreFailed):
        await asyncio.wait_for(waiting, 60)
    await queue.close()


async def test_a_recovery_that_fails_stops_the_store() -> None:
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    await queue.enqueue(plain_mail())
    await queue.close()
    files = LossyFiles(files.disk)
    recovered = await start(files)
    files.fail[files.calls + 1] = StoreFailed("Input/output error")

    with pytest.raises(StoreFailed):
        await asyncio.wait_for(anext(recovered.dequeue()), 60)

    await recovered.close()
