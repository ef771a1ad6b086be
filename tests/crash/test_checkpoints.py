"""A checkpoint that has begun finishes or stops the store, without its caller too (FORMAT.md 7).

What ended since the last one is noted once: a checkpoint forgotten halfway would bring it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from crash.lossy import LossyFiles
from crash.world import Inline, Outside, check, opened, start
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import StoreFailed

T = TypeVar("T")
STEPS = 12
"""More passes of the event loop than a round of maintenance takes."""


class Held(Inline):
    """A thread that gets to its work when `free` is set, and then does it to its end."""

    def __init__(self) -> None:
        self.asked, self.free = asyncio.Event(), asyncio.Event()
        self.begun = 0

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.shield(asyncio.ensure_future(self._work(work, *arguments)))

    async def _work(self, work: Callable[..., T], *arguments: object) -> T:
        self.begun += 1
        self.asked.set()
        await self.free.wait()
        return work(*arguments)


async def with_an_ended_entry(files: LossyFiles) -> OwnedQueue:
    """Open a store in which one mail ended since the last checkpoint, and one keeps its segment."""
    queue = await start(files)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("ended")
    await outside.lease()
    await outside.enqueue("waits")
    await outside.done("ended")
    return queue


@pytest.mark.parametrize("steps", range(STEPS))
async def test_cancelled_maintenance_brings_nothing_back(steps: int) -> None:
    files = LossyFiles()
    queue = await with_an_ended_entry(files)
    asked = asyncio.ensure_future(queue.maintain())
    for _ in range(steps):
        await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait({asked})

    await queue.maintenance.checkpoint()
    await queue.close()

    async with opened(files.disk, seed=1) as (_, queue):
        await check(queue, files.journal.events(len(files.journal.steps)))
        assert [view.mail.name async for view in queue.browse()] == ["waits"]


async def test_no_checkpoint_is_written_beside_one_whose_caller_left() -> None:
    files = LossyFiles()
    queue = await with_an_ended_entry(files)
    queue.engine.log_threads = threads = Held()
    asked = asyncio.ensure_future(queue.maintain())
    await threads.asked.wait()
    asked.cancel()
    await asyncio.wait({asked})

    another = asyncio.ensure_future(queue.maintain())
    closing = asyncio.ensure_future(queue.close())
    for _ in range(STEPS):
        await asyncio.sleep(0)
    assert (threads.begun, closing.done()) == (1, False)
    threads.free.set()
    await closing
    await asyncio.wait({another})


async def test_a_checkpoint_that_fails_stops_the_store_of_any_caller() -> None:
    """R6: the store stops, because it cannot know which garbage flags were written. Only a spool
    file that cannot be freed stops nothing."""
    stops = 0
    for call in range(1, await calls_of_a_round() + 1):
        files = LossyFiles()
        queue = await with_an_ended_entry(files)
        files.fail[files.calls + call] = StoreFailed("cannot write: Input/output error")
        raised = None
        try:
            await queue.maintain()
        except StoreFailed as error:
            raised = error

        assert queue.engine.failure is raised, call
        stops += raised is not None
        await queue.close()
    assert stops > 3


async def calls_of_a_round() -> int:
    """Return how often the disk is asked for something in a round of maintenance."""
    files = LossyFiles()
    queue = await with_an_ended_entry(files)
    before = files.calls
    await queue.maintain()
    await queue.close()
    return files.calls - before
