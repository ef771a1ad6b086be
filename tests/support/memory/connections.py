"""The port `connections` over a next hop in memory.

The port `Resolver` over a table of answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from enum import Enum, auto

from postroad.domain.mail.mail import Envelope, Outcome, OutcomeKind
from postroad.domain.smtp.next_hops import HopTimeouts
from postroad.ports.delivery import (
    BeforeEnd,
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    ContentFailed,
    JobFinished,
    Transmission,
    at_once,
    report_late,
)
from postroad.routing.answers import Answer, AnswerKind, MxRecord, Question, RecordType, TlsaRecord
from postroad.routing.routes import ResolvedHop

LOST = "451 4.4.2 the connection was lost"
LATER = "451 4.3.0 later"
IN_DOUBT = f"{LOST}; the end of the mail was sent, so it may be delivered"


class Loss(Enum):
    """Point at which a connection is lost while a mail is transmitted: nothing was answered, its
    recipients were, its end was sent."""

    BEFORE = auto()
    WITHIN = auto()
    AT_END = auto()


class MemoryConnector:
    """Opens connections to a next hop that takes all mail, but for what a test says otherwise."""

    def __init__(self) -> None:
        self.delivered: list[tuple[Envelope, bytes]] = []
        """With the recipients that it took."""
        self.refusal: str | None = None
        """Why it accepts no connection."""
        self.outcomes: dict[str, Outcome] = {}
        """By recipient."""
        self.losses: dict[str, Loss] = {}
        """By sender."""
        self.gate = asyncio.Event()
        """Cleared, it holds back the answers to the ends of mails."""
        self.gate.set()
        self.away: dict[str, str] = {}
        """Host → why it accepts no connection."""
        self.unavailable: dict[str, str] = {}
        """Hosts that end each session over its first mail → their reply."""
        self.stuck: set[str] = set()
        """Hosts that never answer the end of a mail."""
        self.backoffs: dict[str, timedelta] = {}
        """Hosts that answer each mail by 451, and ask to be left alone; their connections end."""
        self.taken_by: dict[str, str] = {}
        """The host that took the last mail of a recipient."""
        self.sources: dict[str, str] = {}
        """From where the last mail of a recipient came, where an administrator has it."""
        self.opened: list[str] = []
        """The host of each connection that was begun."""
        self.limits: list[timedelta | None] = []
        """For how long each of them tries an address."""
        self.times: list[HopTimeouts | None] = []
        """Time that an administrator gives to each of them."""

    def open(
        self,
        hop: ResolvedHop,
        on_event: Callable[[ConnectionEvent], None],
        before_end: BeforeEnd = at_once,
    ) -> MemoryConnection:
        """Begin to open a connection (see the port)."""
        self.opened.append(hop.next_hop.host)
        self.limits.append(hop.connect_within)
        self.times.append(hop.timeouts)
        source = hop.next_hop.source
        local = None if source is None else source.addresses[0]
        return MemoryConnection(self, hop.next_hop.host, on_event, before_end, local)


class MemoryConnection:
    """One connection (see the port)."""

    def __init__(
        self,
        connector: MemoryConnector,
        host: str,
        on_event: Callable[[ConnectionEvent], None],
        before_end: BeforeEnd,
        source: str | None = None,
    ) -> None:
        self._source = source
        self._hop = connector
        self._host = host
        self._on_event = on_event
        self._before_end = before_end
        self._jobs: deque[Transmission] = deque()
        self._changed = asyncio.Event()
        self._aborted = asyncio.Event()
        self._is_closing = self._has_ended = False
        self._finished = 0
        self._task = asyncio.create_task(self._run())

    def submit(self, transmission: Transmission) -> None:
        """Add a job (see the port)."""
        if self._has_ended:
            report_late(transmission, self._on_event)
            return
        self._jobs.append(transmission)
        self._changed.set()

    def close(self) -> None:
        """Finish what is being transmitted, and close (see the port)."""
        self._is_closing = True
        self._changed.set()

    def abort(self) -> None:
        """Close at once (see the port)."""
        self._aborted.set()
        self.close()

    async def _run(self) -> None:
        refusal = self._hop.away.get(self._host, self._hop.refusal)
        text = await self._serve() if refusal is None else refusal
        text = "" if self._aborted.is_set() else text
        self._has_ended = True
        self._on_event(ConnectionClosed(text, tuple(each.job for each in self._jobs)))

    async def _serve(self) -> str:
        if not self._is_closing:
            self._on_event(ConnectionOpened())
        while not self._is_closing:
            if self._jobs:
                if not await self._transmit(self._jobs[0]):
                    return LOST
            else:
                self._changed.clear()
                await self._changed.wait()
        return ""

    async def _transmit(self, job: Transmission) -> bool:
        """Transmit the first job; return whether the connection lasts."""
        if self._source is not None:
            self._hop.sources |= dict.fromkeys(job.envelope.recipients, self._source)
        loss = self._hop.losses.get(job.envelope.sender or "")
        if loss is Loss.BEFORE and self._finished:
            return False  # it stays, and is untried
        if loss in (Loss.BEFORE, Loss.WITHIN):
            return self._finish_all(job, LOST)
        if (reply := self._hop.unavailable.get(self._host)) is not None:
            return self._finish_all(job, reply)
        try:
            async with aclosing(job.content()) as chunks:
                content = b"".join([chunk async for chunk in chunks])
        except Exception as error:
            self._report(ContentFailed(job.job, error))
            return False
        if not await self._may_end():
            return self._finish_all(job, LOST)
        await self._answer()
        if loss is Loss.AT_END or self._aborted.is_set():
            return self._finish_all(job, IN_DOUBT)
        if (backoff := self._hop.backoffs.get(self._host)) is not None:
            outcomes = dict.fromkeys(job.envelope.recipients, Outcome.deferred(LATER))
            self._report(JobFinished(job.job, outcomes, backoff))
            return False
        self._take(job, content)
        return True

    async def _may_end(self) -> bool:
        """Wait until the end of a mail may be sent; return whether the connection lasts so long."""
        ready = asyncio.ensure_future(self._before_end())
        aborted = asyncio.ensure_future(self._aborted.wait())
        await asyncio.wait((ready, aborted), return_when=asyncio.FIRST_COMPLETED)
        aborted.cancel()
        return not ready.cancel()

    async def _answer(self) -> None:
        """Wait until the end of a mail may be answered, or the connection is aborted."""
        while not self._aborted.is_set() and (
            self._host in self._hop.stuck or not self._hop.gate.is_set()
        ):
            waiting = {asyncio.ensure_future(self._changed.wait())}
            self._changed.clear()
            if self._host not in self._hop.stuck:
                waiting.add(asyncio.ensure_future(self._hop.gate.wait()))
            _, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in left:
                each.cancel()

    def _take(self, job: Transmission, content: bytes) -> None:
        delivered = Outcome.delivered("250 2.0.0 kept")
        outcomes = {
            each: self._hop.outcomes.get(each, delivered) for each in job.envelope.recipients
        }
        taken = tuple(e for e, each in outcomes.items() if each.kind is OutcomeKind.DELIVERED)
        if taken:
            self._hop.taken_by.update(dict.fromkeys(taken, self._host))
            self._hop.delivered.append((Envelope(job.envelope.sender, taken), content))
        self._report(JobFinished(job.job, outcomes))

    def _finish_all(self, job: Transmission, text: str) -> bool:
        outcomes = dict.fromkeys(job.envelope.recipients, Outcome.deferred(text))
        was_lost = not self._aborted.is_set()
        self._report(JobFinished(job.job, outcomes, ended_session=was_lost))
        return False

    def _report(self, event: JobFinished | ContentFailed) -> None:
        self._jobs.popleft()
        self._finished += 1
        self._on_event(event)


HOUR = timedelta(hours=1)


class MemoryResolver:
    """Answers from records that were added; any other name does not exist. `asked` has every
    question."""

    def __init__(self) -> None:
        self._addresses: dict[Question, list[str]] = {}
        self._exchanges: dict[Question, list[MxRecord]] = {}
        self._texts: dict[str, list[str]] = {}
        self._certificates: dict[str, list[TlsaRecord]] = {}
        self._validated: set[str] = set()
        self._names: set[str] = set()
        self._aliases: dict[str, str] = {}
        self._unavailable: dict[str, str] = {}
        self.asked: list[Question] = []

    def add(self, name: str, *records: str | tuple[int, str], cname: str | None = None) -> None:
        """Add addresses, and MX records as (preference, host); or make the name a CNAME. Without
        any, the name has no records."""
        self._names.add(name)
        if cname is not None:
            self._aliases[name] = cname
        for record in records:
            if isinstance(record, tuple):
                question = Question(name, RecordType.MX)
                self._exchanges.setdefault(question, []).append(MxRecord(*record))
            else:
                question = Question(name, RecordType.AAAA if ":" in record else RecordType.A)
                self._addresses.setdefault(question, []).append(record)

    def add_text(self, name: str, text: str) -> None:
        """Add a TXT record."""
        self._names.add(name)
        self._texts.setdefault(name, []).append(text)

    def add_certificate(self, name: str, record: TlsaRecord) -> None:
        """Add a TLSA record."""
        self._names.add(name)
        self._certificates.setdefault(name, []).append(record)

    def validate(self, *names: str) -> None:
        """Answer all questions about these names as validated by DNSSEC."""
        self._validated.update(names)

    def fail(self, name: str, reason: str = "SERVFAIL") -> None:
        """Answer no question about a name any more."""
        self._unavailable[name] = reason

    async def look_up(self, *questions: Question) -> tuple[Answer, ...]:
        """Return what was added (see the port)."""
        return tuple(map(self._look_up, questions))

    def _look_up(self, question: Question) -> Answer:
        self.asked.append(question)
        name, aliases = question.name, []
        while name in self._aliases:
            name = self._aliases[name]
            if name in aliases:
                return _unavailable("a loop of CNAME records")
            aliases.append(name)
        if name in self._unavailable:
            return _unavailable(self._unavailable[name])
        found = Question(name, question.type)
        is_validated = {question.name, *aliases} <= self._validated
        return replace(self._answer(found, tuple(aliases)), is_validated=is_validated)

    def _answer(self, question: Question, aliases: tuple[str, ...]) -> Answer:
        exchanges = tuple(self._exchanges.get(question, ()))
        addresses = tuple(self._addresses.get(question, ()))
        is_text, is_tlsa = question.type is RecordType.TXT, question.type is RecordType.TLSA
        texts = tuple(self._texts.get(question.name, ())) if is_text else ()
        certificates = tuple(self._certificates.get(question.name, ())) if is_tlsa else ()
        if exchanges or addresses or texts or certificates:
            return Answer(
                AnswerKind.RECORDS,
                HOUR,
                exchanges,
                addresses,
                aliases,
                texts=texts,
                certificates=certificates,
            )
        is_known = question.name in self._names
        return Answer(AnswerKind.NO_DATA if is_known else AnswerKind.NO_NAME, HOUR, aliases=aliases)


def _unavailable(reason: str) -> Answer:
    return Answer(AnswerKind.UNAVAILABLE, timedelta(seconds=30), reason=reason)
