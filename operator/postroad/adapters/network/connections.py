"""A connection to a next hop over SMTP or LMTP, as the port `connections` describes it.

One task writes and reads. It holds the first commands of the next mail ready and puts them behind
the end of a mail, or sends them while that end is unanswered. No further: DATA is the last command
of a group, so its reply comes before anything else is sent, and every reply of an earlier command
with it. At most two mails are under way so, and no `delivered` can belong to another one.
Source: RFC 2920 3.1; AMB-20; ADR 0038.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path

from postroad.adapters.network.authentication import authentication_at
from postroad.adapters.network.broken_tls import BrokenTls
from postroad.adapters.network.connecting import (
    Addresses,
    KnownAddresses,
    Reached,
    Shunned,
    UnixSocket,
)
from postroad.adapters.network.exchange import text_of
from postroad.adapters.network.jobs import ConnectionJob
from postroad.adapters.network.opening import SessionTerms, context_for, ehlo_name_to
from postroad.adapters.network.preparation import Preparation
from postroad.adapters.network.sessions import ClientSession
from postroad.adapters.network.timeouts import Timeouts
from postroad.adapters.network.transactions import ClientTransaction
from postroad.adapters.network.wire import ConnectionLost, WireError
from postroad.domain.mail import Outcome
from postroad.ports.connections import (
    ConnectionClosed,
    ConnectionOpened,
    ContentFailed,
    JobFinished,
    OnEvent,
    Transmission,
    report_late,
)
from postroad.ports.signing import Signer
from postroad.routing.routes import ResolvedHop

_TIMEOUTS = Timeouts()
_FOR_EVER = timedelta.max

MOST_LOGINS = 1000
"""Next hops whose last login is remembered."""


class SmtpConnector:
    """Opens connections. `ehlo_name`, `ca_file` and `signer` as for `SmtpRelay`."""

    def __init__(
        self,
        *,
        ehlo_name: str | None,
        ca_file: Path | None = None,
        signer: Signer | None = None,
        timeouts: Timeouts = _TIMEOUTS,
    ) -> None:
        self._ehlo_name = ehlo_name
        self._timeouts = timeouts
        self._shunned = Shunned()
        self._addresses_of = lru_cache(Addresses)
        self._ca_file = ca_file
        self._context_for = lru_cache(context_for)
        self._broken_tls = BrokenTls()
        self._authentication_of = lru_cache(MOST_LOGINS)(authentication_at)
        self._preparation = Preparation(signer)

    def open(self, hop: ResolvedHop, on_event: OnEvent) -> SmtpConnection:
        """Begin to open a connection (see the port)."""
        next_hop = hop.next_hop
        open_session = partial(
            ClientSession.open,
            self._reach(hop),
            SessionTerms(
                next_hop,
                ehlo_name_to(next_hop, self._ehlo_name),
                self._context_for(
                    next_hop.tls, self._ca_file, next_hop.oldest_tls, by_tlsa=next_hop.by_tlsa
                ),
                self._timeouts,
                self._authentication_of(next_hop),
                hop.certificates,
                self._broken_tls,
            ),
        )
        return SmtpConnection(open_session, self._preparation, on_event)

    def _reach(self, hop: ResolvedHop) -> Reached:
        next_hop = hop.next_hop
        if next_hop.socket is not None:
            return UnixSocket(next_hop.socket)
        if hop.addresses:
            return KnownAddresses(hop.addresses, next_hop.port, self._shunned, next_hop.source)
        return self._addresses_of(next_hop.host, next_hop.port, next_hop.source)


class SmtpConnection:
    """One connection (see the port)."""

    def __init__(
        self,
        open_session: Callable[[], Awaitable[ClientSession]],
        preparation: Preparation,
        on_event: OnEvent,
    ) -> None:
        self._open_session = open_session
        self._preparation = preparation
        self._on_event = on_event
        self._session: ClientSession | None = None
        self._begun: deque[ConnectionJob] = deque()
        """Jobs whose first commands were sent, at most two."""
        self._jobs: deque[ConnectionJob] = deque()
        """Those behind them."""
        self._is_running = self._is_closing = self._is_aborted = self._is_over = False
        self._has_ended = False
        """Whether the last event has its jobs: it takes no more."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="a connection to a next hop")

    def submit(self, transmission: Transmission) -> None:
        """Add a job (see the port)."""
        if self._has_ended:
            report_late(transmission, self._on_event)
            return
        self._jobs.append(ConnectionJob(transmission))
        self._wake()

    def close(self) -> None:
        """Finish what is being transmitted, and close (see the port)."""
        self._is_closing = True
        if self._session is not None:
            self._wake()
        elif self._is_running:
            self._cancel()

    def abort(self) -> None:
        """Close at once (see the port)."""
        self._is_closing = self._is_aborted = True
        if self._is_over and self._session is not None:
            self._session.abort()
        elif self._is_running and not self._is_over:
            self._cancel()

    def _cancel(self) -> None:
        # An event handler runs within the task, which looks at the flags when the handler returns.
        if asyncio.current_task() is not self._task:
            self._task.cancel()

    def _wake(self) -> None:
        if self._session is not None:
            self._session.wire.wake()

    async def _run(self) -> None:
        self._is_running = True
        error: WireError | None = None
        try:
            if not self._is_closing:
                self._session = await self._open_session()
                self._on_event(ConnectionOpened())
                await self._serve(self._session)
        except WireError as problem:
            error = problem
        except asyncio.CancelledError:
            if not self._is_closing:
                self._is_aborted = True
                raise
        finally:
            await self._end(error)

    async def _serve(self, session: ClientSession) -> None:
        """Transmit one job after the other. Raises: WireError."""
        while await self._begin_next(session):
            while self._begun and not self._is_aborted:
                job = self._begun[0]
                if not await self._transmit(session, job):
                    raise WireError("the session ended with the mail before")

    async def _begin_next(self, session: ClientSession) -> bool:
        """Wait for a job, and send its first commands; return False where none is to be sent any
        more. Raises: WireError."""
        while not self._is_closing:
            await session.exchange.expect_silence()
            if session.is_worn:
                raise WireError("the next hop takes no more mails in one session")
            if (transaction := self._begin_ready(session)) is not None:
                await session.send(transaction)
                return True
            if self._jobs and (event := self._jobs[0].untransmitted) is not None:
                await self._report(self._jobs, event)
            elif not self._jobs or not self._jobs[0].is_read:
                await session.wire.arrival(_FOR_EVER)
        return False

    def _begin_ready(self, session: ClientSession) -> ClientTransaction | None:
        """Begin the next job if its content is there; else see to it that it will be."""
        if not self._jobs or session.is_worn:
            return None
        job = self._jobs[0]
        if not job.is_read:
            job.read(session, self._preparation)
            return None
        transaction = job.begin(session)
        if transaction is not None:
            self._begun.append(self._jobs.popleft())
        return transaction

    async def _transmit(self, session: ClientSession, job: ConnectionJob) -> bool:
        """Transmit a job whose first commands were sent. Return whether the session goes on.
        Raises: WireError."""
        transaction, envelope = job.transaction, job.transmission.envelope
        assert transaction is not None
        self._read_ahead(session)
        try:
            is_due = await transaction.run()
        except WireError:
            raise
        except Exception as error:  # of the content
            await self._report(self._begun, ContentFailed(job.number, error))
            return False
        session.learn(transaction)
        if is_due and await transaction.send_end(self._behind(session)):
            await self._follow(session, transaction)
            await transaction.conclude()
        outcomes = session.settled(transaction, envelope)
        await self._report(self._begun, JobFinished(job.number, outcomes))
        return transaction.is_clean

    def _read_ahead(self, session: ClientSession) -> None:
        """Read the beginning of the next mail, so that its commands can go behind this one."""
        if self._jobs and session.is_pipelined and not session.is_worn:
            self._jobs[0].read(session, self._preparation)

    def _behind(self, session: ClientSession) -> bytes:
        """Return the first commands of the next mail, if they may stand behind the end of this."""
        transaction = self._begin_ahead(session)
        return b"" if transaction is None else transaction.first_group

    async def _follow(self, session: ClientSession, transaction: ClientTransaction) -> None:
        """Until the end of a mail is answered, send the first commands of a mail that gets ready.
        An error is left to the reading of the reply."""
        try:
            while len(self._begun) == 1 and not session.wire.has_unread:
                if (ahead := self._begin_ahead(session)) is not None:
                    await session.send(ahead)
                else:
                    await session.wire.arrival(transaction.time_left)
        except WireError:
            pass

    def _begin_ahead(self, session: ClientSession) -> ClientTransaction | None:
        if self._is_closing or not session.is_pipelined:
            return None
        transaction = self._begin_ready(session)
        if transaction is not None:
            transaction.is_ahead = True
        return transaction

    async def _report(self, jobs: deque[ConnectionJob], event: JobFinished | ContentFailed) -> None:
        """Report what became of the first job."""
        job = jobs.popleft()
        self._on_event(event)
        await job.release()

    async def _end(self, error: WireError | None) -> None:
        self._is_over = True
        if (event := self._last_event(error)) is not None:
            await self._report(self._begun or self._jobs, event)
        if self._session is not None:
            if error is None and not self._begun and not self._is_aborted:
                await self._session.quit()
            else:
                self._session.abort()
        unsaid = []
        for jobs in (self._begun, self._jobs):
            while jobs:
                unsaid.append(jobs[0].number)
                await jobs.popleft().release()
        self._has_ended = True
        self._on_event(ConnectionClosed("" if error is None else text_of(error), tuple(unsaid)))

    def _last_event(self, error: WireError | None) -> JobFinished | None:
        """Return the event of the job that the end of the connection finishes, if there is one."""
        session = self._session
        if session is None:
            return None
        if self._begun:
            job = self._begun[0]
            why = error or ConnectionLost()
            assert job.transaction is not None
            is_given_up = self._is_aborted and not job.transaction.is_answered
            if is_given_up or session.is_stale(job.transaction, why):
                return None
            outcomes = session.interrupted(job.transaction, job.transmission.envelope, why)
            return JobFinished(job.number, outcomes)
        if error is not None and self._jobs and not session.transactions:
            job = self._jobs[0]  # else a next hop that only greets would have it come for ever
            return JobFinished(job.number, job.all_recipients(Outcome.deferred(text_of(error))))
        return None
