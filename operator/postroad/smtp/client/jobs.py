"""One job of a connection: its content, read shortly before it is sent, and its transaction.

The jobs of a connection in order: those whose commands were sent, and those behind them."""

import asyncio
from collections import deque
from contextlib import AsyncExitStack, aclosing
from itertools import islice

from postroad.domain.mail.mail import Outcome
from postroad.ports.delivery import ContentFailed, JobFinished, Transmission
from postroad.smtp.client.sessions import ClientSession
from postroad.smtp.client.transaction.chunks import ChunkTransaction
from postroad.smtp.client.transaction.content import OpenContent, Preparation
from postroad.smtp.client.transaction.transactions import ClientTransaction, Outgoing


class ConnectionJob:
    def __init__(self, transmission: Transmission) -> None:
        self.transmission = transmission
        self.number = transmission.job
        self.transaction: ClientTransaction | ChunkTransaction | None = None
        self.untransmitted: JobFinished | ContentFailed | None = None
        """Outcome of it without a transaction, once that is known."""
        self._at_hand: OpenContent | None = None
        self._reading: asyncio.Task[OpenContent] | None = None
        """Reads the beginning of a content that is not at hand."""
        self._resources: AsyncExitStack | None = None

    @property
    def is_read(self) -> bool:
        """True if the beginning of the content was read, or could not be."""
        if self._reading is None:
            return self._at_hand is not None
        return self._reading.done()

    def read(self, session: ClientSession, preparation: Preparation) -> None:
        """Begin to read the content, once; wake the session when it is there. One that is at hand
        is there when this returns, without a task of its own."""
        if self._reading is not None or self._at_hand is not None:
            return
        if (kept := self.transmission.at_hand()) is not None:
            content = OpenContent.at_hand(*kept)
            if preparation.leaves(content, takes_8bit=session.takes_8bit):
                self._at_hand = content
                return
        self._reading = asyncio.create_task(self._peek(session, preparation))
        self._reading.add_done_callback(lambda _: session.wire.wake())

    def begin(self, session: ClientSession) -> Outgoing | None:
        """Begin the transaction. None: `untransmitted` has what becomes of the job."""
        if self.untransmitted is not None or (content := self._content()) is None:
            return None
        begun = session.begin(self.transmission.envelope, content)
        if isinstance(begun, Outgoing):
            return begun
        self.untransmitted = JobFinished(self.number, begun)
        return None

    def _content(self) -> OpenContent | None:
        if self._at_hand is not None:
            return self._at_hand
        assert self._reading is not None
        if (error := self._reading.exception()) is None:
            return self._reading.result()
        if not isinstance(error, Exception):
            raise error
        self.untransmitted = ContentFailed(self.number, error)
        return None

    def all_recipients(self, outcome: Outcome) -> dict[str, Outcome]:
        return dict.fromkeys(self.transmission.envelope.recipients, outcome)

    async def release(self) -> None:
        reading = self._reading
        if reading is not None and not reading.done():
            reading.cancel()
            await asyncio.wait((reading,))
        if reading is not None and not reading.cancelled():
            reading.exception()  # else asyncio logs that of a job that is untried
        if self._resources is not None:
            await self._resources.aclose()

    async def _peek(self, session: ClientSession, preparation: Preparation) -> OpenContent:
        self._resources = AsyncExitStack()
        chunks = await self._resources.enter_async_context(aclosing(self.transmission.content()))
        shape = await self.transmission.shape()
        content = await OpenContent.peek(chunks, self.transmission.size_bytes, shape)
        envelope = self.transmission.envelope
        preparing = preparation.of(
            content, envelope, session.next_hop, takes_8bit=session.takes_8bit
        )
        if preparing is None:
            return content
        return await self._resources.enter_async_context(preparing)


MAX_SERIES = 10
"""Mails that are sent before one of them is answered, at most: chunks, and one by DATA behind them.
So many may come twice where a connection is lost."""

OCTETS_READ_AHEAD = 128 * 1024
"""Of contents that are in memory before their turn: a process has hundreds of connections."""


class JobLine:
    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self.begun: deque[ConnectionJob] = deque()
        """Jobs whose first commands were sent: perhaps one whose end is not answered; chunks; one
        by DATA."""
        self.behind: deque[ConnectionJob] = deque()
        self.useful_jobs = 1
        """So many jobs cost no more round trips than two: one whose end is to be answered, and
        those that may be sent behind it, as the mails showed that were begun last."""

    def add(self, transmission: Transmission) -> None:
        self.behind.append(ConnectionJob(transmission))

    def read_ahead(self, session: ClientSession) -> bool:
        """Read the beginnings of the mails that could be sent next, once each; return whether all
        of them are there."""
        if not self.behind or session.is_worn:
            return True
        octets, is_ready = 0, True
        for job in islice(self.behind, MAX_SERIES if session.takes_chunks else 1):
            octets += job.transmission.size_bytes
            if octets > OCTETS_READ_AHEAD and job is not self.behind[0]:
                break
            job.read(session, self._preparation)
            is_ready = is_ready and job.is_read
        return is_ready

    def begin(self, session: ClientSession, *, is_ahead: bool) -> bytes:
        """Begin the next job whose content is there, and where the next hop takes chunks, a series:
        all but the last of it are chunks. Return what is to be sent; empty: nothing is."""
        series: list[tuple[ConnectionJob, Outgoing]] = []
        while self.behind and self.behind[0].is_read and not session.is_worn:
            mail = self.behind[0].begin(session)
            if mail is None:
                break
            self.begun.append(self.behind.popleft())
            series.append((self.begun[-1], mail))
            if len(series) == MAX_SERIES or not session.may_be_chunk(mail):
                break
        if not series:
            return b""
        octets: list[bytes] = []
        for job, mail in series[:-1]:
            job.transaction, chunk = session.by_chunk(mail)
            octets.append(chunk)
        job, mail = series[-1]
        length = MAX_SERIES if session.may_be_chunk(mail) else len(series)
        self.useful_jobs = 1 + length if length > 1 else 1
        follows_chunks = len(series) > 1
        last = job.transaction = session.by_data(mail, follows_chunks=follows_chunks)
        last.is_ahead = is_ahead or follows_chunks
        return b"".join((*octets, last.first_group))

    def chunks(self) -> list[tuple[ConnectionJob, ChunkTransaction]]:
        """Return the first jobs, as far as they are chunks."""
        found: list[tuple[ConnectionJob, ChunkTransaction]] = []
        for job in self.begun:
            if not isinstance(job.transaction, ChunkTransaction):
                break
            found.append((job, job.transaction))
        return found

    @property
    def last(self) -> tuple[ConnectionJob, ClientTransaction]:
        """The last job whose first commands were sent, which goes by DATA."""
        job = self.begun[-1]
        assert isinstance(job.transaction, ClientTransaction)
        return job, job.transaction

    @property
    def first(self) -> tuple[ConnectionJob, ClientTransaction] | None:
        """The job that is under way by DATA, where it is the first."""
        if self.begun and isinstance(self.begun[0].transaction, ClientTransaction):
            return self.begun[0], self.begun[0].transaction
        return None
