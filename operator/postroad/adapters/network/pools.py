"""A pool of sessions with one next hop: keeps them open between mails and bounds their number."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from postroad.adapters.network.exchange import ServiceUnavailable, SessionRefused
from postroad.adapters.network.sessions import ClientSession


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How many sessions, and how long they live."""

    sessions: int = 20
    """At the same time. More mails wait for one."""

    idle: timedelta = timedelta(seconds=10)
    """Shorter than the minute or more after which next hops commonly close, because an idle session
    takes up one of their slots."""

    mails: int = 100
    """On one session; spreads the load over the servers behind one name."""


LONGEST_WAIT = timedelta(minutes=1)
"""For a session to come back, where the next hop accepts no further one."""


class SessionPool:
    """Lends sessions, the one used last first, so that the others go idle and are closed.

    Next hops limit the sessions of a client: where one refuses a new session by 421 while others
    are lent, the borrower waits for one of these.
    """

    def __init__(
        self, open_session: Callable[[], Awaitable[ClientSession]], limits: PoolLimits
    ) -> None:
        self._open = open_session
        self._limits = limits
        self._longest_idle = limits.idle.total_seconds()
        self._slots = asyncio.Semaphore(limits.sessions)
        self._busy = 0
        """Sessions that are lent or being opened."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Borrowers that wait for a session to come back. While there are any, one is busy, or a
        borrower was woken."""
        self._idle: deque[tuple[ClientSession, float]] = deque()
        """Each with the loop's time at which it is closed; soonest first."""
        self._watch: asyncio.TimerHandle | None = None
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def session(self) -> Loan:
        """Lend a session for an `async with` block. A block that fails within a transaction closes
        it. Entering raises: SessionRefused when a new one cannot be opened."""
        return Loan(self)

    async def borrow(self) -> ClientSession:
        """Take a session; the caller calls `give_back`. Raises: SessionRefused."""
        await self._slots.acquire()
        try:
            return await self._obtain()
        except BaseException:
            self._slots.release()
            raise

    def give_back(self, session: ClientSession, *, failed: bool) -> None:
        """Keep a session for the next mail, or close it."""
        self._slots.release()
        if failed and not session.is_reusable:
            session.abort()
        else:
            self._keep(session)
        self._busy -= 1
        self._wake()

    async def close(self) -> None:
        """Quit idle sessions; lent ones are closed when they are given back. Idempotent."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        while self._idle:
            self._dismiss(self._idle.pop()[0])
        await asyncio.gather(*self._goodbyes)

    async def _obtain(self) -> ClientSession:
        until = asyncio.get_running_loop().time() + LONGEST_WAIT.total_seconds()
        if self._waiting:
            await self._come_back(until)
        while True:
            self._busy += 1
            try:
                return self._take_idle() or await self._open()
            except BaseException as error:
                self._busy -= 1
                if not self._busy:
                    self._end_waiting(error)
                is_late = asyncio.get_running_loop().time() >= until
                if not self._busy or is_late or not isinstance(error, ServiceUnavailable):
                    raise
            await self._come_back(until)

    async def _come_back(self, until: float) -> None:
        """Wait until a session has come back, or `until` of the loop's clock. Raises:
        SessionRefused when none can come back."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(until):
                await waiter
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.exception() is None:
                self._wake()  # another borrower: this one was woken and takes no session
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _end_waiting(self, error: BaseException) -> None:
        """No session is lent or being opened: none can come back."""
        if not isinstance(error, SessionRefused):
            self._wake()
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    def _take_idle(self) -> ClientSession | None:
        while self._idle:
            session, _ = self._idle.pop()
            if session.is_reusable:
                return session
            session.abort()
        return None

    def _keep(self, session: ClientSession) -> None:
        worn = session.transactions >= self._limits.mails
        if self._is_closed or worn or not session.is_reusable:
            self._dismiss(session)
            return
        loop = asyncio.get_running_loop()
        self._idle.append((session, loop.time() + self._longest_idle))
        if self._watch is None:
            self._watch = loop.call_later(self._longest_idle, self._expire)

    def _expire(self) -> None:
        """Quit sessions that were idle for long. One timer for all, which lending leaves as it is:
        a timer for each return would cost more than the rest of the lending."""
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0][1] <= loop.time():
            self._dismiss(self._idle.popleft()[0])
        due = self._idle[0][1] if self._idle else None
        self._watch = None if due is None else loop.call_at(due, self._expire)

    def _dismiss(self, session: ClientSession) -> None:
        task = asyncio.create_task(session.quit(), name="quit a session")
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)


class Loan:
    """A session for one `async with` block."""

    __slots__ = ("_pool", "_session")

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool

    async def __aenter__(self) -> ClientSession:
        self._session = await self._pool.borrow()
        return self._session

    async def __aexit__(self, kind: object, *rest: object) -> None:
        self._pool.give_back(self._session, failed=kind is not None)
