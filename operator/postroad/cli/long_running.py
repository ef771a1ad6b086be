"""What long-running commands share: signals, the health port, a queue opened with patience.

At SIGTERM a process ends the work it has in hand, which makes duplicates rarer; what is stored is
right without it. Source: AMB-22.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import uvloop

from postroad.bootstrap import open_inherited, open_queue
from postroad.errors import PostroadError
from postroad.ports.mail_queue import MailQueue
from postroad.settings import Settings
from postroad.telemetry import logs
from postroad.telemetry.health import HealthServer, Readiness

_log = logs.logger("process")

OBJECTS_BEFORE_SEARCH = 50_000
"""Objects that may be made, less those that went, before garbage is searched among them."""

LONGEST_PAUSE_SECONDS = 30.0
"""Between attempts to open a queue whose servers are away."""


ORPHANED_DRAIN = timedelta(seconds=1)
"""How long an orphan lets what is under way be finished: whoever takes over waits for its end."""


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a process has of the one that started it: `parent`, a descriptor whose end says that it
    is gone, and perhaps that of the lock on a store."""

    parent: int
    lock: int | None = None


@dataclass(slots=True)
class Process:
    """A running process: what it says to probes, when it is to end and within what time, and its
    queue once that is open."""

    readiness: Readiness
    stop: asyncio.Event
    drain_within: timedelta
    _queue: MailQueue | None = None
    last_moment: asyncio.TimerHandle | None = None
    """When an orphan ends, whatever it is at."""

    @property
    def queue(self) -> MailQueue:
        assert self._queue is not None
        return self._queue

    def end(self) -> None:
        """Begin to end."""
        self.readiness.draining()
        self.stop.set()


def run(settings: Settings, main: Coroutine[Any, Any, None]) -> None:
    """Run a long-running command to its end."""
    logs.configure(settings.log_level)
    allow_all_descriptors()
    collect_seldom()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def collect_seldom() -> None:
    """Look for cyclic garbage seldom: a mail makes thousands of objects and no cycles, so that most
    searches find nothing. What the imports made is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_BEFORE_SEARCH, *gc.get_threshold()[1:])


def allow_all_descriptors() -> None:
    """Let this process open as many files and connections as it may at all: the soft limit, often
    1024, is meant for programs that use select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # as before, then
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@asynccontextmanager
async def process(
    settings: Settings, url: str, *, create: bool, inheritance: Inheritance | None = None
) -> AsyncIterator[Process | None]:
    """Listen for signals and probes, open the queue, and close all of it in the end.

    Servers that are away are waited for. Gives None when the process is to end before that. With an
    inheritance, it ends when its parent does.
    Raises: what `open_queue` raises and will raise again.
    """
    this = Process(Readiness(), asyncio.Event(), timedelta(seconds=settings.drain_seconds))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, this.end)
    if inheritance is not None:
        loop.add_reader(inheritance.parent, _orphaned, loop, inheritance.parent, this)
    health = HealthServer(this.readiness)
    await health.listen(settings.health_port)
    try:
        lock = None if inheritance is None else inheritance.lock
        queue = this._queue = await _open(settings, url, create=create, stop=this.stop, lock=lock)
        if queue is None:
            yield None
            return
        this.readiness.opened(queue.size)
        try:
            yield this
        finally:
            await queue.close()
            _log.info("closed", queue=queue.name)
    finally:
        await health.close()
        if this.last_moment is not None:
            this.last_moment.cancel()


def _orphaned(loop: asyncio.AbstractEventLoop, parent: int, this: Process) -> None:
    loop.remove_reader(parent)  # an end can be read for ever
    this.drain_within = min(this.drain_within, ORPHANED_DRAIN)
    this.end()
    # It may be draining already, with more time, and whoever takes over waits for this end.
    this.last_moment = loop.call_later(2 * ORPHANED_DRAIN.total_seconds(), os._exit, 1)


async def _open(
    settings: Settings, url: str, *, create: bool, stop: asyncio.Event, lock: int | None
) -> MailQueue | None:
    pause = 1.0
    while not stop.is_set():
        try:
            if lock is not None:
                return await open_inherited(url, lock, settings)
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
