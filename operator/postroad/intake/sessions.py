"""One client's session: lines to the dialogue, replies back, and mails into the queue.

A mail is answered with 250 only after `enqueue` returned. What arrives after DATA goes on being
read to its end whatever is wrong with it, so that no part of a refused mail is taken for commands.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from datetime import timedelta

from prometheus_client import Counter

from postroad.adapters.network.wire import (
    ConnectionLost,
    Interrupted,
    LineTooLong,
    TooSlow,
    Wire,
    WireError,
)
from postroad.domain.mail import Mail, Origin
from postroad.domain.replies import Reply
from postroad.domain.transparency import Unstuffer
from postroad.errors import PostroadError, StoreFull
from postroad.intake import answers
from postroad.intake.commands import LONGEST_LINE
from postroad.intake.dialogue import Answer, Dialogue, Offer, Step
from postroad.intake.incoming import Incoming
from postroad.intake.received import MOST_HOPS, HopCounter, trace_field
from postroad.ports.clock import Chance, Clock
from postroad.ports.queue import MailQueue
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import RECEIVED

_log = logger("intake")

MOST_DROPPED = 3
"""Times the largest mail: so much is read of one that is too large, for an orderly reply."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take. Source: RFC 5321 4.5.3.2.7 (5 minutes for a command)."""

    command: timedelta = timedelta(minutes=5)
    data_block: timedelta = timedelta(minutes=3)
    tls: timedelta = timedelta(minutes=1)
    goodbye: timedelta = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Receiver:
    """What all sessions of an intake share."""

    queue: MailQueue
    offer: Offer
    clock: Clock
    chance: Chance
    tls: ssl.SSLContext | None = None
    patience: Patience = Patience()
    _counters: dict[str, Counter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offer", replace(self.offer, tls=self.tls is not None))

    def count(self, kind: str) -> None:
        """Count a mail by the kind of reply it got."""
        if (counter := self._counters.get(kind)) is None:
            counter = self._counters[kind] = RECEIVED.labels(self.queue.name, kind)
        counter.inc()


class Session:
    """Runs one session to its end."""

    def __init__(self, wire: Wire, receiver: Receiver) -> None:
        self._wire = wire
        self._receiver = receiver
        self._patience = receiver.patience
        self._dialogue = Dialogue(receiver.offer)
        self._pending = b""

    async def run(self) -> None:
        """Talk until the client leaves, is too slow, or the intake closes. Never raises but on
        cancellation."""
        try:
            await self._converse()
        except Interrupted:
            await self._farewell(answers.CLOSING)
        except TooSlow:
            await self._farewell(answers.IDLE)
        except WireError as error:
            _log.debug("session lost", error=str(error))
        finally:
            self._wire.abort()

    async def _converse(self) -> None:
        await self._send(self._dialogue.greeting())
        while True:
            reply, step = await self._next_answer()
            await self._send(reply, more_follows=step is Step.NEXT_COMMAND and self._wire.has_line)
            if step is Step.READ_MAIL:
                await self._send(await self._take_mail())
            elif step is Step.START_TLS:
                assert self._receiver.tls is not None
                await self._wire.start_tls(self._receiver.tls, self._patience.tls)
                self._dialogue.secured()
            elif step is Step.CLOSE:
                await self._wire.close(self._patience.goodbye)
                return

    async def _next_answer(self) -> Answer:
        try:
            line = await self._wire.read_line(LONGEST_LINE, self._patience.command)
        except LineTooLong:
            return self._dialogue.refuse(answers.LINE_TOO_LONG)
        return self._dialogue.answer(line)

    async def _send(self, reply: Reply, *, more_follows: bool = False) -> None:
        """Send a reply; together with the next ones when the client has sent more commands."""
        self._pending += reply.encode()
        if not more_follows:
            pending, self._pending = self._pending, b""
            await self._wire.write(pending, self._patience.command)

    async def _farewell(self, reply: Reply) -> None:
        try:
            await self._send(reply)
            await self._wire.close(self._patience.goodbye)
        except WireError:
            pass  # it left first

    async def _take_mail(self) -> Reply:
        """Read a mail, queue it, and return the reply to it."""
        origin = Origin(
            self._dialogue.client_name, self._wire.peer_address, self._dialogue.protocol
        )
        name = f"{self._receiver.chance.bits(64):016x}"
        trace = trace_field(origin, self._receiver.offer.hostname, name, self._receiver.clock.now())
        incoming = Incoming(self._receiver.offer.max_size_bytes, trace)
        try:
            reply = await self._read_mail(incoming) or await self._enqueue(incoming, name, origin)
        finally:
            incoming.discard()
            self._dialogue.finish()
        self._count(reply)
        return reply

    async def _read_mail(self, incoming: Incoming) -> Reply | None:
        """Read up to the end of the mail; return the reply that refuses it, or None."""
        unstuffer, hops = Unstuffer(), HopCounter()
        rest, problem = None, None
        while rest is None:
            chunk = await self._wire.read_some(self._patience.data_block)
            content, rest = unstuffer.feed(chunk)
            hops.feed(content)
            try:
                await incoming.add(content)
            except StoreFull as error:
                problem = error
            if incoming.size_bytes > MOST_DROPPED * self._receiver.offer.max_size_bytes:
                await self._farewell(answers.TOO_LARGE)
                raise ConnectionLost("the client goes on with a mail that is far too large")
        self._wire.put_back(rest)
        if incoming.is_too_large:
            return self._refused(answers.TOO_LARGE)
        if unstuffer.has_bare_line_ends:
            return self._refused(answers.BARE_LINE_ENDS)
        if hops.hops >= MOST_HOPS:
            return self._refused(answers.LOOP)
        return self._refused(answers.reply_for(problem), problem) if problem else None

    async def _enqueue(self, incoming: Incoming, name: str, origin: Origin) -> Reply:
        transaction = self._dialogue.transaction
        assert transaction is not None
        try:
            mail = Mail(
                transaction.mail_from.sender,
                transaction.recipients,
                await incoming.content(),
                name=name,
                origin=origin,
                dsn=transaction.dsn,
            )
            enqueue_id = await self._receiver.queue.enqueue(mail)
        except PostroadError as error:
            return self._refused(answers.reply_for(error), error)
        except Exception as error:  # the client keeps the mail while we are wrong
            _log.exception("enqueue failed in an unforeseen way", queue=self._receiver.queue.name)
            return answers.reply_for(error)
        _log.info(
            "mail accepted",
            queue=self._receiver.queue.name,
            enqueue_id=str(enqueue_id),
            mail_name=name,
            recipients=len(transaction.recipients),
            size_bytes=incoming.size_bytes,
        )
        return answers.accepted(enqueue_id)

    def _refused(self, reply: Reply, error: PostroadError | None = None) -> Reply:
        _log.info(
            "mail refused",
            queue=self._receiver.queue.name,
            reply=str(reply),
            error=None if error is None else f"{type(error).__name__}: {error.explain()}",
        )
        return reply

    def _count(self, reply: Reply) -> None:
        if reply.is_positive:
            kind = "accepted"
        else:
            kind = "permanent" if reply.is_permanent else "transient"
        self._receiver.count(kind)
