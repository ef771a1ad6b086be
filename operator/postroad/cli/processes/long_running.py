"""Parts that long-running commands share: signals, the health port, waiting for a queue's servers,
maintenance beside their work.

At SIGTERM a process finishes its work in progress, which makes duplicates rarer; the stored state
needs no such end. Source: AMB-22.

Every worker runs rounds of maintenance, so that a queue needs no process of its own for it. Every
intake runs them too, more seldom, because a queue may have no worker. Rounds of several processes
do not harm one another, and jitter keeps them apart."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.bootstrap import open_inherited, open_queue
from postroad.bootstrap.followed_file import FileContent, FollowedFile
from postroad.cli.processes.event_loop import run_long
from postroad.domain.delivery.suppressed import SuppressionRules
from postroad.errors import InvalidSettings, PostroadError
from postroad.event_log.spooled import SpooledEvents
from postroad.ports.clock import Clock, Randomness
from postroad.ports.mail_queue import MailQueue
from postroad.settings import Settings
from postroad.telemetry import logs
from postroad.telemetry.health import HealthServer, Readiness
from postroad.telemetry.logs import logger
from postroad.telemetry.tracing import MailTracer, tracer_of

MAINTENANCE_INTERVAL = timedelta(seconds=30)
"""Between two rounds, on average: maintenance finds a dead letter within a minute. A round with
nothing to do costs a few reads; every ten minutes, one reads all that waits."""

INTAKE_MAINTENANCE_INTERVAL = timedelta(minutes=10)
"""Time between two rounds of an intake: workers beside it run them more often, or no process
does."""

_worker_log = logger("worker")


async def run_maintenance(
    queue: MailQueue, clock: Clock, randomness: Randomness, every: timedelta = MAINTENANCE_INTERVAL
) -> None:
    """Run rounds of maintenance until cancelled, half to one and a half of `every` apart. A round
    that failed is logged; the next one tries again."""
    while True:
        await clock.sleep(every * (0.5 + randomness.uniform()))
        try:
            await queue.maintain()
        except PostroadError as error:
            _worker_log.warning(
                "a round of maintenance failed", queue=queue.name, error=error.explain()
            )
        except Exception:
            _worker_log.exception("a round of maintenance failed", queue=queue.name)


_log = logs.logger("process")

MAX_PAUSE_SECONDS = 30.0
"""Between attempts to open a queue whose servers are away."""

ORPHANED_DRAIN = timedelta(seconds=1)
"""Time of an orphan to finish its work: short, because the next owner waits for its end."""


@dataclass(frozen=True, slots=True)
class Inheritance:
    """Objects that a process inherits: `parent`, a descriptor that reaches its end when the parent
    is gone, and perhaps the descriptor of the lock on a store."""

    parent: int
    lock: int | None = None


@dataclass(slots=True)
class Process:
    """A running process: its readiness, the event and the time of its end, its queue once open."""

    readiness: Readiness
    stop: asyncio.Event
    drain_within: timedelta
    _queue: MailQueue | None = None
    last_moment: asyncio.TimerHandle | None = None
    """When an orphan exits, even amid work."""

    events: SpooledEvents | None = None
    """Events for programs outside, of intake and worker; None: there are none."""

    tracer: MailTracer | None = None
    """Begins the spans of mails; None: there are none."""

    suppression: SuppressionRules | None = None
    """Rules of the suppression list, of intake and worker; None: they do not look at it."""

    followed: list[asyncio.Event] = field(default_factory=list)
    """Set when an administrator asks for a look at files that the process follows."""

    @property
    def queue(self) -> MailQueue:
        assert self._queue is not None
        return self._queue

    def look(self) -> None:
        """Ask for a look at the files that the process follows."""
        if not self.followed:
            _log.info("SIGHUP: there is no file to read again")
        for each in self.followed:
            each.set()

    def end(self) -> None:
        self.readiness.draining()
        self.stop.set()


def run(settings: Settings, main: Coroutine[Any, Any, None]) -> None:
    logs.configure(settings.log_level)
    run_long(main)


@asynccontextmanager
async def process(
    settings: Settings, url: str, *, create: bool, inheritance: Inheritance | None = None
) -> AsyncIterator[Process | None]:
    """Listen for signals and probes, open the queue, and close both at the end. Waits for servers
    that are away; yields None when the process is to end before they answer. With an inheritance,
    the process ends when its parent does. Raises: permanent errors of `open_queue`."""
    this = Process(Readiness(), asyncio.Event(), timedelta(seconds=settings.drain_seconds))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, this.end)
    # By default it would end the process, and logrotate, for example, sends it to each daemon.
    loop.add_signal_handler(signal.SIGHUP, this.look)
    if inheritance is not None:
        loop.add_reader(inheritance.parent, _orphaned, loop, inheritance.parent, this)
    health = HealthServer(this.readiness)
    try:
        await health.listen(settings.health_host, settings.health_port)
    except InvalidSettings:
        if "health_port" in settings.model_fields_set or not url.startswith("embedded:"):
            raise
        await health.listen(settings.health_host, 0)  # beside another MTA of this machine
    try:
        lock = None if inheritance is None else inheritance.lock
        queue = this._queue = await open_patiently(
            settings, url, create=create, stop=this.stop, lock=lock
        )
        if queue is None:
            yield None
            return
        this.readiness.opened(queue.check_open)
        this.tracer = tracer_of(os.environ)
        try:
            yield this
        finally:
            await queue.close()
            if this.tracer is not None:
                await this.tracer.close()
            _log.info("closed", queue=queue.name)
    finally:
        await health.close()
        if this.last_moment is not None:
            this.last_moment.cancel()


@asynccontextmanager
async def background_maintenance(
    this: Process, every: timedelta = MAINTENANCE_INTERVAL
) -> AsyncIterator[None]:
    """Maintain the queue until the process is to end, so that no round delays its last mails."""
    running = asyncio.create_task(
        run_maintenance(this.queue, MachineClock(), SystemRandomness(), every)
    )
    stopping = asyncio.create_task(this.stop.wait())
    stopping.add_done_callback(lambda _: running.cancel())
    try:
        yield
    finally:
        stopping.cancel()
        await asyncio.wait([running, stopping])


def _orphaned(loop: asyncio.AbstractEventLoop, parent: int, this: Process) -> None:
    loop.remove_reader(parent)  # the end of a file stays readable: the loop would call again
    this.drain_within = min(this.drain_within, ORPHANED_DRAIN)
    this.end()
    # A drain that began with more time goes on; the next owner must not wait for it.
    this.last_moment = loop.call_later(2 * ORPHANED_DRAIN.total_seconds(), os._exit, 1)


async def open_patiently(
    settings: Settings, url: str, *, create: bool, stop: asyncio.Event, lock: int | None = None
) -> MailQueue | None:
    """Open a queue, and wait for servers that are away; None: `stop` came first. Raises: permanent
    errors of `open_queue`."""
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
        pause = min(2 * pause, MAX_PAUSE_SECONDS)
    return None


@asynccontextmanager
async def following(
    this: Process, file: FollowedFile[FileContent] | None, use: Callable[[FileContent], None]
) -> AsyncIterator[None]:
    """Follow the changes of a file meanwhile; SIGHUP asks for a look at once."""
    if file is None:
        yield
        return
    asked = asyncio.Event()
    this.followed.append(asked)
    task = asyncio.create_task(file.follow(use, asked), name=f"follow {file.file.name}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
