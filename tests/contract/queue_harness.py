"""What the mail queue contract needs of an engine, and a consumer that never waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from typing import Protocol, TypeVar

from postroad.domain.mail.mail import Mail
from postroad.ports.mail_queue import Item, MailQueue
from support.memory.clock import ManualClock

T = TypeVar("T")
SOON = timedelta(seconds=30)
"""How long an item may take to come: much longer than it does, on any machine."""

A_WHILE = timedelta(seconds=1)
"""How long one looks before one says that nothing comes."""


class Time(Protocol):
    """How a test waits."""

    async def outcome(self, work: asyncio.Future[T], within: timedelta) -> bool:
        """Let time pass until `work` is done or `within` is over; return whether it is done."""
        ...


class Harness(Time, Protocol):
    """One new, empty queue, and its time."""

    async def open(self) -> MailQueue:
        """Return another handle on the queue; the harness closes it after the test."""
        ...

    async def new_name(self) -> MailQueue:
        """Return a handle on another new queue."""
        ...


class RealTime:
    """Time that really passes."""

    async def outcome(self, work: asyncio.Future[T], within: timedelta) -> bool:
        done, _ = await asyncio.wait({work}, timeout=within.total_seconds())
        return bool(done)


class VirtualTime:
    """Time that a manual clock lets pass, from one waking to the next."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    async def outcome(self, work: asyncio.Future[T], within: timedelta) -> bool:
        end = self.clock.elapsed() + within
        await self.clock.advance(timedelta(0))
        while not work.done() and self.clock.elapsed() < end:
            left = end - self.clock.elapsed()
            wake = self.clock.next_waking
            await self.clock.advance(left if wake is None else min(wake, left))
        return work.done()


class Consumer:
    """One consumer of a queue, asked for one item after the other."""

    def __init__(self, harness: Time, queue: MailQueue, prefetch: int = 10) -> None:
        self._harness = harness
        self._items: AsyncIterator[Item] = queue.dequeue(prefetch)
        self._asked: asyncio.Future[Item] | None = None

    async def next(self, within: timedelta = SOON) -> Item:
        """Return the next item."""
        asked = self._ask()
        assert await self._harness.outcome(asked, within), "no item came"
        self._asked = None
        return asked.result()

    async def nothing(self, within: timedelta = A_WHILE) -> bool:
        """Return whether no item comes for a while."""
        return not await self._harness.outcome(self._ask(), within)

    async def close(self) -> None:
        """Leave the loop."""
        if self._asked is not None:
            self._asked.cancel()
            await asyncio.gather(self._asked, return_exceptions=True)
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()

    def _ask(self) -> asyncio.Future[Item]:
        if self._asked is None:
            self._asked = asyncio.ensure_future(_next(self._items))
        return self._asked


async def _next(items: AsyncIterator[Item]) -> Item:
    return await anext(items)


async def eventually(harness: Time, work: Awaitable[T], within: timedelta = SOON) -> T:
    """Return what `work` returns, letting time pass meanwhile."""
    task = asyncio.ensure_future(work)
    assert await harness.outcome(task, within), "it took too long"
    return task.result()


def plain_mail(
    name: str = "name",
    sender: str | None = "sender@example.org",
    recipients: tuple[str, ...] = ("recipient@example.net",),
    content: bytes | AsyncIterator[bytes] = b"Subject: hello\r\n\r\nbody\r\n",
    **more: object,
) -> Mail:
    """Return a mail to enqueue."""
    return Mail(sender, recipients, content, name=name, **more)  # type: ignore[arg-type]


async def names(views: AsyncIterator[object]) -> list[str]:
    """Return the names of browsed mails."""
    return [view.mail.name async for view in views]  # type: ignore[attr-defined]
