"""Sessions with one next hop, kept open between mails and bounded in number."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from postroad.adapters.network.sessions import Session


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How many sessions, and how long they live."""

    sessions: int = 20
    """At the same time. Mails beyond it wait for one."""

    idle: timedelta = timedelta(seconds=10)
    """Next hops commonly close after a minute or more; a short stay frees their slots sooner."""

    mails: int = 100
    """On one session; spreads load over the servers behind one name."""


class SessionPool:
    """Lends sessions. The one used last is lent first, so that the others can go idle."""

    def __init__(self, open_session: Callable[[], Awaitable[Session]], limits: PoolLimits) -> None:
        self._open = open_session
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.sessions)
        self._idle: deque[tuple[Session, asyncio.TimerHandle]] = deque()
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Lend a session; it comes back when the block ends, and is closed when the block fails in
        the midst of a transaction.

        Raises: SessionRefused when a new one cannot be opened.
        """
        async with self._slots:
            session = self._take_idle() or await self._open()
            try:
                yield session
            except BaseException:
                if session.is_reusable:
                    self._give_back(session)
                else:
                    session.abort()
                raise
            self._give_back(session)

    async def close(self) -> None:
        """Say goodbye on idle sessions; those lent are closed when they come back. Idempotent."""
        self._is_closed = True
        while self._idle:
            session, timer = self._idle.pop()
            timer.cancel()
            self._dismiss(session)
        await asyncio.gather(*self._goodbyes)

    def _take_idle(self) -> Session | None:
        while self._idle:
            session, timer = self._idle.pop()
            timer.cancel()
            if session.is_reusable:
                return session
            session.abort()
        return None

    def _give_back(self, session: Session) -> None:
        worn = session.transactions >= self._limits.mails
        if self._is_closed or worn or not session.is_reusable:
            self._dismiss(session)
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._limits.idle.total_seconds(), self._expire, session)
        self._idle.append((session, timer))

    def _expire(self, session: Session) -> None:
        for entry in self._idle:
            if entry[0] is session:
                self._idle.remove(entry)
                self._dismiss(session)
                return

    def _dismiss(self, session: Session) -> None:
        task = asyncio.create_task(session.quit(), name="goodbye to a next hop")
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)
