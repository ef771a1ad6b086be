"""A connection to a next hop over SMTP or LMTP, as the port `connections` describes it.

One task writes and reads. It holds the first commands of the next mail ready and puts them behind
the end of a mail, or sends them while that end is unanswered. No further by DATA, which is the last
command of a group: its reply comes before anything else is sent, and every reply of an earlier
command with it. Where the next hop takes chunks, whole mails go between the two; the reply to DATA
behind them shows whose replies theirs are.
Source: RFC 2920 3.1; RFC 3030; AMB-20; ADR 0038, 0066.

Opens connections to next hops over SMTP and LMTP, as the port `connections` describes it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path

from postroad.domain.mail.return_paths import plain_path
from postroad.ports.delivery import (
    BeforeEnd,
    ConnectionClosed,
    ConnectionOpened,
    ContentFailed,
    JobFinished,
    OnEvent,
    Signer,
    TakesSeries,
    Transmission,
    at_once,
    report_late,
)
from postroad.routing.routes import ResolvedHop
from postroad.smtp.client.authentication import authentication_at
from postroad.smtp.client.client import OutOfStep, SessionRefused, text_of
from postroad.smtp.client.connecting import (
    Addresses,
    KnownAddresses,
    Reached,
    RememberedHops,
    Shunned,
    Timeouts,
    UnixSocket,
)
from postroad.smtp.client.jobs import ConnectionJob, JobLine
from postroad.smtp.client.opening import PathOf, SessionTerms, context_for, ehlo_name_to
from postroad.smtp.client.sessions import ClientSession
from postroad.smtp.client.transaction.content import Preparation
from postroad.smtp.client.transaction.transactions import ClientTransaction, MailReplies
from postroad.smtp.wire import ConnectionLost, WireError

_FOR_EVER = timedelta.max


class SmtpConnection:
    """One connection (see the port)."""

    def __init__(
        self,
        open_session: Callable[[], Awaitable[ClientSession]],
        preparation: Preparation,
        on_event: OnEvent,
        before_end: BeforeEnd,
    ) -> None:
        self._open_session = open_session
        self._line = JobLine(preparation)
        self._on_event = on_event
        self._before_end = before_end
        self._session: ClientSession | None = None
        self._useful_jobs = 1
        self._is_running = self._is_closing = self._is_aborted = self._is_over = False
        self._has_ended = False
        """True if the last event has its jobs: it takes no more."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="a connection to a next hop")

    def submit(self, transmission: Transmission) -> None:
        """Add a job (see the port)."""
        if self._has_ended:
            report_late(transmission, self._on_event)
            return
        self._line.add(transmission)
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
            self._report_series()
            while self._line.begun and not (self._is_aborted or self._leaves_out_next):
                if not await self._transmit(session):
                    raise WireError("the session ended with the mail before")
                self._report_series()

    def _report_series(self) -> None:
        if self._useful_jobs != self._line.useful_jobs:
            self._useful_jobs = self._line.useful_jobs
            self._on_event(TakesSeries(self._useful_jobs))

    @property
    def _leaves_out_next(self) -> bool:
        """True if the next mail is not to be transmitted, although its first commands went out: the
        connection is to close, and the next hop does not have the content."""
        return self._is_closing and self._line.first is not None and self._line.first[1].is_ahead

    async def _begin_next(self, session: ClientSession) -> bool:
        """Wait for a job, and send its first commands; return False where none is to be sent any
        more. Raises: WireError."""
        behind = self._line.behind
        while not self._is_closing:
            await session.exchange.expect_silence()
            if session.is_worn:
                raise WireError("the next hop takes no more mails in one session")
            if not session.wire.is_open:
                raise ConnectionLost  # before anything of a series may be in doubt
            if not behind:
                await session.wire.arrival(_FOR_EVER)
                continue
            self._line.read_ahead(session)
            if octets := self._line.begin(session, is_ahead=False):
                await session.send(octets)
                return True
            if (event := behind[0].untransmitted) is not None:
                await self._report(behind, event)
            elif not behind[0].is_read:
                await session.wire.arrival(_FOR_EVER)
        return False

    async def _transmit(self, session: ClientSession) -> bool:
        """Transmit the job whose first commands were sent, behind chunks or alone. Return whether
        the session goes on. Raises: WireError."""
        if session.is_pipelined:
            self._line.read_ahead(session)
        chunks = self._line.chunks()
        for _, chunk in chunks:
            await chunk.read()
        job, transaction = self._line.last
        is_taken = await transaction.offer()
        for each, chunk in chunks:  # the mail behind them was answered in step
            await self._settle(session, each, chunk)
        if self._is_aborted:
            return True
        if session.is_pipelined:
            self._line.read_ahead(session)  # of what came for them, while their records are awaited
        try:
            is_due = is_taken and await transaction.send_content(self._before_end)
        except WireError:
            raise
        except Exception as error:  # of the content
            await self._report(self._line.begun, ContentFailed(job.number, error))
            return False
        session.learn(transaction)
        if is_due and await transaction.send_end(self._ahead(session)):
            await self._follow(session, transaction)
            await transaction.conclude()
        ended_session = transaction.ended_by is not None
        await self._settle(session, job, transaction, ended_session=ended_session)
        if (ended_by := transaction.ended_by) is None:
            return transaction.is_clean
        if isinstance(ended_by, OutOfStep) and not self._line.chunks():
            raise SessionRefused(str(ended_by))  # no reply to what began behind it is out of step
        raise ended_by

    async def _settle(
        self,
        session: ClientSession,
        job: ConnectionJob,
        transaction: MailReplies,
        *,
        ended_session: bool = False,
    ) -> None:
        outcomes = session.settled(transaction, job.transmission.envelope)
        event = JobFinished(job.number, outcomes, ended_session=ended_session)
        await self._report(self._line.begun, event)

    async def _follow(self, session: ClientSession, transaction: ClientTransaction) -> None:
        """Until the end of a mail is answered, send the first commands of mails that get ready. An
        error is left to the reading of the reply."""
        try:
            while len(self._line.begun) == 1 and not session.wire.has_unread:
                if ahead := self._ahead(session):
                    await session.send(ahead)
                else:
                    await session.wire.arrival(transaction.time_left)
        except WireError:
            pass

    def _ahead(self, session: ClientSession) -> bytes:
        """Return what may be sent behind the end of a mail, once all of it is there; else nothing:
        a series is not longer than what is sent at once."""
        line = self._line
        if self._is_closing or not line.behind or not session.is_pipelined:
            return b""
        if not line.read_ahead(session) or not session.wire.is_open:
            return b""  # where the wire is not, none of it is in doubt then
        return line.begin(session, is_ahead=True)

    async def _report(self, jobs: deque[ConnectionJob], event: JobFinished | ContentFailed) -> None:
        """Report what became of the first job."""
        job = jobs.popleft()
        self._on_event(event)
        await job.release()

    async def _end(self, error: WireError | None) -> None:
        self._is_over = True
        if self._session is not None:
            if error is not None:
                self._session.ended(error)
            await self._finish_begun(self._session, error)
            if error is None and not self._line.begun and not self._is_aborted:
                await self._session.quit()
            else:
                self._session.abort()
        untried = []
        for jobs in (self._line.begun, self._line.behind):
            while jobs:
                untried.append(jobs[0].number)
                await jobs.popleft().release()
        self._has_ended = True
        self._on_event(ConnectionClosed("" if error is None else text_of(error), tuple(untried)))

    async def _finish_begun(self, session: ClientSession, error: WireError | None) -> None:
        """Report the jobs that the end of the connection finishes; the others are untried."""
        line, why = self._line, error or ConnectionLost()
        if line.first is not None and not await self._interrupt(session, why):
            return
        chunks = line.chunks()
        are_read = all(chunk.is_clean for _, chunk in chunks)
        for job, chunk in chunks:
            if (outcomes := session.left(chunk, why)) is None:
                return
            await self._report(line.begun, JobFinished(job.number, outcomes))
        if chunks and are_read:
            await self._interrupt(session, why)
        elif error is not None and line.behind and not session.transactions:
            job = line.behind[0]  # else a next hop that only greets would have it come for ever
            outcomes = job.all_recipients(session.deferred_by(error))
            await self._report(line.behind, JobFinished(job.number, outcomes, ended_session=True))

    async def _interrupt(self, session: ClientSession, error: WireError) -> bool:
        """Report the job that was under way by DATA, unless nothing is known of it; return whether
        it is."""
        assert self._line.first is not None
        job, transaction = self._line.first
        is_given_up = self._is_aborted and not transaction.is_answered
        if is_given_up or session.is_stale(transaction, error):
            return False
        outcomes = session.interrupted(transaction, job.transmission.envelope, error)
        event = JobFinished(job.number, outcomes, ended_session=not self._is_aborted)
        await self._report(self._line.begun, event)
        return True


_TIMEOUTS = Timeouts()

MAX_LOGINS = 1000
"""Next hops whose last login is remembered."""


class SmtpConnector:
    """Opens connections. `ehlo_name`, `ca_file` and `signer` as for `SmtpRelay`; `path_of`: see
    `SessionTerms`."""

    def __init__(
        self,
        *,
        ehlo_name: str | None,
        ca_file: Path | None = None,
        signer: Signer | None = None,
        timeouts: Timeouts = _TIMEOUTS,
        path_of: PathOf = plain_path,
    ) -> None:
        self._ehlo_name = ehlo_name
        self._path_of = path_of
        self._timeouts = timeouts
        self._shunned = Shunned()
        self._addresses_of = lru_cache(Addresses)
        self._ca_file = ca_file
        self._broken_tls, self._unfit = RememberedHops(), RememberedHops()
        self._fit_for_tls = RememberedHops()
        self._authentication_of = lru_cache(MAX_LOGINS)(authentication_at)
        self._preparation = Preparation(signer)

    def open(
        self, hop: ResolvedHop, on_event: OnEvent, before_end: BeforeEnd = at_once
    ) -> SmtpConnection:
        """Begin to open a connection (see the port)."""
        next_hop = hop.next_hop
        open_session = partial(
            ClientSession.open,
            self._reach(hop),
            SessionTerms(
                next_hop,
                ehlo_name_to(next_hop, self._ehlo_name),
                context_for(
                    next_hop.tls,
                    next_hop.authorities or self._ca_file,
                    next_hop.oldest_tls,
                    by_tlsa=next_hop.by_tlsa,
                ),
                self._timeouts_for(hop),
                self._authentication_of(next_hop),
                hop.certificates,
                self._broken_tls,
                self._unfit,
                self._fit_for_tls,
                self._path_of,
            ),
        )
        return SmtpConnection(open_session, self._preparation, on_event, before_end)

    def _timeouts_for(self, hop: ResolvedHop) -> Timeouts:
        usual, within = self._timeouts, hop.connect_within
        if hop.timeouts is not None:
            own = {name: each for name, each in asdict(hop.timeouts).items() if each is not None}
            usual = replace(usual, **own)
        if within is None:
            return usual
        return replace(
            usual, connect=min(usual.connect, within), greeting=min(usual.greeting, 2 * within)
        )

    def _reach(self, hop: ResolvedHop) -> Reached:
        next_hop = hop.next_hop
        if next_hop.socket is not None:
            return UnixSocket(next_hop.socket)
        if hop.addresses:
            return KnownAddresses(hop.addresses, next_hop.port, self._shunned, next_hop.source)
        return self._addresses_of(
            next_hop.host, next_hop.port, self._timeouts.look_up, next_hop.source
        )
