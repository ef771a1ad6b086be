"""Queues for tests of programs, with pytest: `pytest_plugins = ["postroad.testing"]`.

Both fixtures are plain functions, so that they work with every plugin for asyncio, and without one:
`queue.run(take)` does for a `SyncQueue` what `await take(queue)` does for a `MailQueue`.

PYTEST_DONT_REWRITE: it has no assertions, and pytest warns of plugins that a test imports."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from secrets import token_hex
from threading import Lock

import pytest

from postroad.adapters.clocks import MachineClock
from postroad.domain.mail.envelope_documents import HandedMail
from postroad.ports.mail_queue import MailQueue

__all__ = ["QueueClock", "join", "queue_clock", "queue_url", "take"]

PASSES = 100
"""Of the event loop, in which tasks that wake over servers in memory do their work."""

PAUSE = 0.01
"""Seconds between two looks at a queue."""


class QueueClock:
    """The clock of the queues of this process, ahead of the machine's as far as a test moves it."""

    def __init__(self) -> None:
        machine = MachineClock()
        self._now, self._elapsed = machine.now, machine.elapsed  # not as they are patched below
        self._ahead = timedelta(0)
        self._lock = Lock()
        self._waiting: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}

    async def advance(self, duration: timedelta) -> None:
        """Let time pass at once: what was delayed for so long is due. Returns when this loop's
        queues have renewed what has a lease; `queue.run(lambda _: clock.advance(…))` for those of
        `postroad.sync`."""
        with self._lock:
            self._ahead += duration
            for each, loop in self._waiting.items():
                loop.call_soon_threadsafe(_wake, each)
        for _ in range(PASSES):
            await asyncio.sleep(0)

    def now(self) -> datetime:
        """See the port `Clock`."""
        return self._now() + self._ahead

    def elapsed(self) -> timedelta:
        """See the port `Clock`."""
        return self._elapsed() + self._ahead

    async def sleep(self, duration: timedelta) -> None:
        """See the port `Clock`."""
        end = self.elapsed() + duration
        loop = asyncio.get_running_loop()
        while True:
            moved: asyncio.Future[None] = loop.create_future()
            with self._lock:
                self._waiting[moved] = loop
                left = end - self.elapsed()
            try:
                await asyncio.wait((moved,), timeout=max(0.0, left.total_seconds()))
            finally:
                with self._lock:
                    del self._waiting[moved]
            if self.elapsed() >= end:
                return


def _wake(moved: asyncio.Future[None]) -> None:
    if not moved.done():
        moved.set_result(None)


@pytest.fixture
def queue_url() -> str:
    """Return the URL of a queue in memory that no other test has; open it with `create=True`. That
    of a directory is `f"embedded://{tmp_path}/queue"`."""
    return f"memory://test-{token_hex(8)}"


@pytest.fixture
def queue_clock(monkeypatch: pytest.MonkeyPatch) -> QueueClock:
    """Return the clock that queues of the test have, those too that the program opens."""
    clock = QueueClock()
    for name in ("now", "elapsed", "sleep"):
        monkeypatch.setattr(MachineClock, name, staticmethod(getattr(clock, name)))
    return clock


MAX_WAIT = timedelta(seconds=10)


async def take(queue: MailQueue, timeout: timedelta = MAX_WAIT) -> list[HandedMail]:
    """Take all mails that are due off the queue, as if they were delivered, and return them in the
    order of the queue: for assertions on what was sent. Raises: TimeoutError, where a consumer has
    one of them."""
    taken: list[HandedMail] = []
    async with asyncio.timeout(timeout.total_seconds()):
        if due := await _due(queue):
            async for item in queue.dequeue(1):
                async with item:
                    taken.append(HandedMail.of(item.mail_id, item.mail, await item.content()))
                    await item.done()
                if len(taken) == due:
                    break
    return taken


async def join(queue: MailQueue, timeout: timedelta = MAX_WAIT) -> None:
    """Wait until consumers have ended all mails but those that are delayed or held. Raises:
    TimeoutError."""
    async with asyncio.timeout(timeout.total_seconds()):
        while True:
            if not await _due(queue):
                return
            await asyncio.sleep(PAUSE)


async def _due(queue: MailQueue) -> int:
    return sum([view.due_at is None and not view.held async for view in queue.browse()])
