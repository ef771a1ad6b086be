"""What long-running commands share: signals, the health port, a queue opened with patience."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import uvloop

from postroad.bootstrap import open_queue
from postroad.errors import PostroadError
from postroad.ports.queue import MailQueue
from postroad.settings import Settings
from postroad.telemetry import logs
from postroad.telemetry.health import HealthServer, Readiness

_log = logs.logger("process")

LONGEST_PAUSE_SECONDS = 30.0
"""Between attempts to open a queue whose servers are away."""


@dataclass(frozen=True, slots=True)
class Process:
    """A running process: its queue, what it says to probes, and when it is to end."""

    queue: MailQueue
    readiness: Readiness
    stop: asyncio.Event
    drain_within: timedelta


def run(settings: Settings, main: Coroutine[Any, Any, None]) -> None:
    """Run a long-running command to its end."""
    logs.configure(settings.log_level)
    allow_all_descriptors()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def allow_all_descriptors() -> None:
    """Let this process open as many files and connections as it may at all: the soft limit, often
    1024, is meant for programs that use select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # as before, then
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@asynccontextmanager
async def process(
    settings: Settings, url: str, *, create: bool, parent: int | None = None
) -> AsyncIterator[Process | None]:
    """Listen for signals and probes, open the queue, and close all of it in the end.

    Servers that are away are waited for. Gives None when the process is to end before that.
    `parent`: a descriptor whose end says that the parent is gone, which is as good as SIGTERM.
    Raises: what `open_queue` raises and will raise again.
    """
    stop, readiness = asyncio.Event(), Readiness()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, stop, readiness)
    if parent is not None:
        loop.add_reader(parent, _orphaned, loop, parent, stop, readiness)
    health = HealthServer(readiness)
    await health.listen(settings.health_port)
    try:
        queue = await _open(settings, url, create=create, stop=stop)
        if queue is None:
            yield None
            return
        readiness.opened(queue.size)
        try:
            yield Process(queue, readiness, stop, timedelta(seconds=settings.drain_seconds))
        finally:
            await queue.close()
            _log.info("closed", queue=queue.name)
    finally:
        await health.close()


def _end(stop: asyncio.Event, readiness: Readiness) -> None:
    readiness.draining()
    stop.set()


def _orphaned(
    loop: asyncio.AbstractEventLoop, parent: int, stop: asyncio.Event, readiness: Readiness
) -> None:
    loop.remove_reader(parent)  # an end can be read for ever
    _end(stop, readiness)


async def _open(
    settings: Settings, url: str, *, create: bool, stop: asyncio.Event
) -> MailQueue | None:
    pause = 1.0
    while not stop.is_set():
        try:
            queue: MailQueue = await open_queue(url, create=create, settings=settings)
            return queue
        except PostroadError as error:
            if not error.transient:
                raise
            _log.warning("queue not open yet", error=error.explain())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    return None
