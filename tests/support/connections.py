"""Jobs for connections, and the events that they lead to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID

from postroad.domain.mail.mail import Envelope, OutcomeKind
from postroad.domain.mail.shapes import Shape, shape_of
from postroad.ports.delivery import (
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    ContentFailed,
    JobFinished,
    Transmission,
)

MAX_SECONDS = 3600
"""Until the next event: longer than any timeout of a connection."""


def body_of(job: int) -> bytes:
    return b"Subject: %d\r\n\r\nbody %d\r\n" % (job, job)


def a_job(
    job: int,
    *recipients: str,
    content: bytes | None = None,
    error: Exception | None = None,
    is_slow: bool = False,
) -> Transmission:
    """Return a job whose sender names it; with `error`, its content breaks off."""
    octets = body_of(job) if content is None else content

    async def chunks() -> AsyncGenerator[bytes, None]:
        for chunk in (octets[:9], octets[9:]) if is_slow else (octets,):
            yield chunk
            for _ in range(10 * is_slow):
                await asyncio.sleep(0)
        if error is not None:
            raise error

    async def shape() -> Shape:
        return shape_of((octets,))

    envelope = Envelope(f"job{job}@origin.example", recipients or (f"b{job}@dest.example",))
    return Transmission(job, UUID(int=job), envelope, len(octets), chunks, shape)


class HeldEnds:
    """Holds back the ends of mails from the one of this number on, until `go_on`. `events`: those
    of the connection; `finished` has how many jobs had ended at each call."""

    def __init__(self, events: Events, first: int = 1) -> None:
        self._events, self._first = events, first
        self._gate = asyncio.Event()
        self._changed = asyncio.Event()
        self.finished: list[int] = []

    async def __call__(self) -> None:
        self.finished.append(len(self._events.finished))
        self._changed.set()
        if len(self.finished) >= self._first:
            await self._gate.wait()

    async def until_held(self) -> None:
        while len(self.finished) < self._first:
            self._changed.clear()
            async with asyncio.timeout(30):
                await self._changed.wait()

    def go_on(self) -> None:
        self._gate.set()


class Events:
    """Keeps the events of one connection."""

    def __init__(self) -> None:
        self.all: list[ConnectionEvent] = []
        self._changed = asyncio.Event()

    def __call__(self, event: ConnectionEvent) -> None:
        self.all.append(event)
        self._changed.set()

    async def until_closed(self) -> ConnectionClosed:
        while not (self.all and isinstance(self.all[-1], ConnectionClosed)):
            await self.next()
        return self.all[-1]

    async def until_opened(self) -> None:
        while ConnectionOpened() not in self.all:
            await self.next()

    async def until_finished(self, count: int) -> None:
        while len(self.finished) < count:
            await self.next()

    async def next(self) -> None:
        self._changed.clear()
        async with asyncio.timeout(MAX_SECONDS):
            await self._changed.wait()

    @property
    def finished(self) -> dict[int, dict[str, OutcomeKind]]:
        """Job → the kind of outcome of each recipient, in the order of the events."""
        return {
            event.job: {each: outcome.kind for each, outcome in event.outcomes.items()}
            for event in self.all
            if isinstance(event, JobFinished)
        }

    @property
    def texts(self) -> dict[int, str]:
        """Job → the text of its first outcome."""
        return {
            event.job: next(iter(event.outcomes.values())).text
            for event in self.all
            if isinstance(event, JobFinished)
        }

    @property
    def errors(self) -> dict[int, Exception]:
        return {each.job: each.error for each in self.all if isinstance(each, ContentFailed)}

    @property
    def jobs(self) -> list[int]:
        """The jobs in the order of their events, those that are untried last."""
        named = [each.job for each in self.all if isinstance(each, JobFinished | ContentFailed)]
        return [*named, *self.untried]

    @property
    def untried(self) -> tuple[int, ...]:
        return tuple(
            job for each in self.all if isinstance(each, ConnectionClosed) for job in each.untried
        )
