"""Hands mail to a function in Python, in this process.

A connection to a program, as the port `connections` describes it: one mail after the other, each
with its content in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from postroad.contents import MemoryBudget
from postroad.domain.mail.envelope_documents import HandedMail
from postroad.domain.mail.mail import Outcome
from postroad.handling import HandlerFunction, NotReached
from postroad.ports.delivery import (
    BeforeEnd,
    ConnectionClosed,
    ConnectionOpened,
    ContentFailed,
    JobFinished,
    OnEvent,
    Transmission,
    at_once,
    report_late,
)
from postroad.routing.routes import ResolvedHop
from postroad.telemetry.logs import logger
from postroad.threaded_calls import ThreadedCalls

_log = logger("worker")


BROKEN_OFF = "451 4.4.2 broken off before an answer came, so the mail may be delivered"


@dataclass(frozen=True, slots=True)
class ProgramResponse:
    """Result of one mail. `ending`: why the connection ends with it; None: it goes on."""

    outcomes: Mapping[str, Outcome]
    backoff: timedelta = timedelta(0)
    ending: str | None = None


class Handing(Protocol):
    """Hands mails to a program, one at a time."""

    async def hand_over(
        self, job: Transmission, content: Sequence[bytes], opened: Callable[[], None]
    ) -> ProgramResponse:
        """Hand one mail over; call `opened` once the program is reached. Raises: NotReached."""

    async def close(self) -> None:
        """Free what it holds. Never raises."""


class SerialConnection:
    """One connection (see the port). A content takes its place in `room` while it is in memory; one
    of more than `largest_bytes` is refused. Needs a running event loop."""

    def __init__(
        self,
        handing: Handing,
        room: MemoryBudget,
        largest_bytes: int,
        on_event: OnEvent,
        before_end: BeforeEnd,
    ) -> None:
        self._handing = handing
        self._room = room
        self._largest_bytes = largest_bytes
        self._on_event = on_event
        self._before_end = before_end
        self._jobs: deque[Transmission] = deque()
        self._changed = asyncio.Event()
        self._is_open = self._is_closing = self._is_aborted = self._has_ended = False
        self._is_handed = False
        """True if the program may have the mail that is under way."""
        self._under_way: asyncio.Task[ProgramResponse] | None = None
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="a connection to a program")

    def submit(self, transmission: Transmission) -> None:
        """Add a job (see the port)."""
        if self._has_ended:
            report_late(transmission, self._on_event)
            return
        self._jobs.append(transmission)
        self._changed.set()

    def close(self) -> None:
        """Finish what is under way, and close (see the port)."""
        self._is_closing = True
        self._changed.set()

    def abort(self) -> None:
        """Close at once (see the port)."""
        self._is_aborted = True
        if self._under_way is not None:
            self._under_way.cancel()
        self.close()

    async def _run(self) -> None:
        text = ""
        try:
            while not self._is_closing and not text:
                if self._jobs:
                    text = await self._carry(self._jobs[0])
                else:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            await self._handing.close()
            untried = tuple(each.job for each in self._jobs)
            self._has_ended = True
            self._on_event(ConnectionClosed("" if self._is_aborted else text, untried))

    async def _carry(self, job: Transmission) -> str:
        """Hand one mail over, and report what came of it; return why the connection ends, or ""."""
        self._is_handed = False
        self._under_way = self._loop.create_task(self._hand_over(job))
        try:
            await asyncio.wait((self._under_way,))
        except asyncio.CancelledError:
            self._under_way.cancel()
            raise
        task, self._under_way = self._under_way, None
        if task.cancelled() and not self._is_handed:
            return BROKEN_OFF
        if task.cancelled():
            response = ProgramResponse(_all(job, Outcome.deferred(BROKEN_OFF)), ending=BROKEN_OFF)
        elif isinstance(error := task.exception(), NotReached):
            return str(error)
        elif isinstance(error, _ContentError):
            self._finish(ContentFailed(job.job, error.reason))
            return "451 4.3.0 a content could not be read"
        elif error is not None:
            _log.error("a mail was not handed over", exc_info=error)
            text = "451 4.3.5 unexpected error in the worker"
            response = ProgramResponse(_all(job, Outcome.deferred(text)), ending=text)
        else:
            response = task.result()
        self._opened()
        self._finish(JobFinished(job.job, response.outcomes, response.backoff))
        return response.ending or ""

    async def _hand_over(self, job: Transmission) -> ProgramResponse:
        if job.size_bytes > self._largest_bytes:
            text = f"552 5.3.4 the mail has more than {self._largest_bytes} octets"
            return ProgramResponse(_all(job, Outcome.failed(text)))
        async with self._room.taken(job.size_bytes):
            try:
                async with aclosing(job.content()) as chunks:
                    content = [chunk async for chunk in chunks]
            except Exception as error:
                raise _ContentError(error) from error
            await self._before_end()
            self._is_handed = True
            return await self._handing.hand_over(job, content, self._opened)

    def _opened(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._on_event(ConnectionOpened())

    def _finish(self, event: JobFinished | ContentFailed) -> None:
        self._jobs.popleft()
        self._on_event(event)


class _ContentError(Exception):
    """The content of a mail could not be read."""

    def __init__(self, reason: Exception) -> None:
        super().__init__()
        self.reason = reason


def _all(job: Transmission, outcome: Outcome) -> dict[str, Outcome]:
    return dict.fromkeys(job.envelope.recipients, outcome)


class FunctionConnector:
    """Opens connections to one function, whatever the next hop. `room`: for contents in memory;
    `threads`: that a function which is not `async` may take at a time."""

    def __init__(self, function: HandlerFunction, room: MemoryBudget, threads: int) -> None:
        self._function, self._room = function, room
        self._threads = ThreadedCalls(threads)

    def open(
        self, hop: ResolvedHop, on_event: OnEvent, before_end: BeforeEnd = at_once
    ) -> SerialConnection:
        """Begin to open a connection (see the port)."""
        calling = _Calling(self._function, self._threads)
        most = self._function.largest_bytes
        return SerialConnection(calling, self._room, most, on_event, before_end)


class _Calling:
    """Calls the function, once at a time."""

    def __init__(self, function: HandlerFunction, threads: ThreadedCalls) -> None:
        self._function, self._threads = function, threads

    async def hand_over(
        self, job: Transmission, content: Sequence[bytes], opened: Callable[[], None]
    ) -> ProgramResponse:
        """Call it with one mail (see `Handing`)."""
        mail = HandedMail.of(job.mail_id, job.envelope, b"".join(content))
        return ProgramResponse(await self._function.outcomes(mail, self._threads, opened))

    async def close(self) -> None:
        """Nothing is held (see `Handing`)."""
