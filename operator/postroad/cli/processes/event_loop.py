"""The event loop of commands that run until a signal ends them."""

import asyncio
import contextlib
import gc
import resource
import socket
from collections.abc import Coroutine
from typing import Any

import uvloop

from postroad.embedded.log.options import KEPT_OPEN
from postroad.errors import InvalidSettings
from postroad.settings import Settings
from postroad.telemetry import logs
from postroad.threaded_calls import ThreadedCalls

OBJECTS_BEFORE_SEARCH = 50_000
"""Net new objects before the garbage collector runs."""

THRESHOLDS = (OBJECTS_BEFORE_SEARCH, 10, 10)

MANY_KEPT = (5_000, 5, 5)
"""Thresholds for a program that keeps many objects, and comes to rest: what it had in hand while it
read them is found before it has as many again."""

MAX_LOOKUPS = 200
"""Names that are looked up at a time: each takes a thread for as long as no name server answers."""

MIN_DESCRIPTORS = 64
"""With fewer, the log of a store may not find one for its next segment, and mail stands still."""

OWN_DESCRIPTORS = 32
"""Of a process without sessions and connections: its log, sockets, libraries."""

_TOO_MANY = f"{MAX_LOOKUPS} names are being looked up, and none more: do name servers answer?"


class EventLoop(uvloop.Loop):
    """An event loop whose lookups of names block nothing else. uvloop makes two at a time, in half
    of libuv's four threads: two names whose servers hang would keep every other server from being
    found."""

    def __init__(self) -> None:
        super().__init__()
        self._lookups = ThreadedCalls(MAX_LOOKUPS)

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Look a name up. Raises: OSError, also where too many are being looked up."""
        if self._lookups.is_full:
            raise socket.gaierror(socket.EAI_AGAIN, _TOO_MANY)
        return await self._lookups.run(socket.getaddrinfo, host, port, family, type, proto, flags)


def run_long(
    main: Coroutine[Any, Any, None], thresholds: tuple[int, int, int] = THRESHOLDS
) -> None:
    """Run a command to its end. `thresholds`: of the garbage collector."""
    allow_all_descriptors()
    collect_seldom(thresholds)
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(main)


def collect_seldom(thresholds: tuple[int, int, int]) -> None:
    """Run the garbage collector seldom, because a mail creates thousands of objects and no cycles;
    exempt the objects of the imports."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)


def within_descriptors(settings: Settings) -> Settings:
    """Return settings whose sessions and connections leave the log and the spool files of a store
    the descriptors that they need; a large mail takes a second one. Raises: InvalidSettings."""
    allow_all_descriptors()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < MIN_DESCRIPTORS:
        raise InvalidSettings(
            f"this process may open {limit} files, and needs {MIN_DESCRIPTORS} at least",
            hint="raise the limit (ulimit -n, or LimitNOFILE= of systemd)",
        )
    sessions, connections = settings.intake.max_sessions, settings.worker.concurrency
    wanted = 2 * sessions + connections + KEPT_OPEN
    if limit < 0 or wanted <= limit - OWN_DESCRIPTORS:
        return settings
    share = (limit - OWN_DESCRIPTORS) / wanted
    fewer = max(1, int(share * sessions)), max(1, int(share * connections))
    logs.configure(settings.log_level)
    logs.logger("process").warning(
        "fewer sessions and connections than set, because of the limit of open files",
        limit=limit, max_sessions=fewer[0], concurrency=fewer[1],
    )  # fmt: skip
    intake = settings.intake.model_copy(update={"max_sessions": fewer[0]})
    worker = settings.worker.model_copy(update={"concurrency": fewer[1]})
    return settings.model_copy(update={"intake": intake, "worker": worker})


def allow_all_descriptors() -> None:
    """Raise the limit of open files to the hard one: the soft one, often 1024, is for select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # the soft limit stays, then
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
