"""A session with a next hop: opens it, starts TLS, runs transactions one after the other, quits."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from postroad import tls
from postroad.adapters.network.client import ClientWire
from postroad.adapters.network.commands import Needs, most_mails, most_recipients, refusal
from postroad.adapters.network.connecting import Addresses
from postroad.adapters.network.content import Content
from postroad.adapters.network.exchange import Exchange, OutOfStep, SessionRefused, text_of
from postroad.adapters.network.timeouts import Timeouts
from postroad.adapters.network.transactions import Transaction
from postroad.adapters.network.wire import InjectedBeforeTLS, WireError
from postroad.domain.mail import Envelope, Outcome, OutcomeKind
from postroad.domain.next_hops import NextHop, Protocol, TlsMode, address_literal

_GREETS_IN_CLEAR = (
    "the next hop offers TLS at this port by STARTTLS only (set its port for implicit TLS, or "
    "use the mode `required`)"
)


class SecuringFailed(SessionRefused):
    """The next hop offers TLS, and it could not be started."""


class SessionStale(WireError):
    """The next hop had closed an idle session before the transaction's first reply."""


class Session:
    """One open session. Not for concurrent use."""

    def __init__(self, wire: ClientWire, next_hop: NextHop, timeouts: Timeouts) -> None:
        self._wire = wire
        self._exchange = Exchange(wire)
        self._next_hop = next_hop
        self._timeouts = timeouts
        self._extensions: dict[str, str] = {}
        self._most_recipients: int | None = None
        self._is_broken = False
        self.transactions = 0
        """Transactions so far, failed ones too."""

    @classmethod
    async def open(
        cls,
        addresses: Addresses,
        next_hop: NextHop,
        ehlo_name: str | None,
        context: ssl.SSLContext | None,
        timeouts: Timeouts,
    ) -> Session:
        """Connect, greet, and start TLS as the next hop's mode requires.

        Raises: SessionRefused.
        """
        try:
            wire = await addresses.connect(timeouts.connect)
        except WireError as error:
            raise SessionRefused(f"451 4.4.1 {error}") from error
        session = cls(wire, next_hop, timeouts)
        try:
            name = ehlo_name or address_literal(wire.local_address)
            if next_hop.tls is TlsMode.IMPLICIT:
                await session._start_tls(context)
            await session._greet(name)
            if next_hop.tls in (TlsMode.OPPORTUNISTIC, TlsMode.REQUIRED):
                await session._secure(name, context)
        except BaseException as error:
            wire.abort()
            if isinstance(error, WireError) and not isinstance(error, SessionRefused):
                raise SessionRefused(text_of(error)) from error
            raise
        return session

    @property
    def is_reusable(self) -> bool:
        """Whether another transaction may begin."""
        limit = most_mails(self._extensions)
        is_worn = limit is not None and self.transactions >= limit
        return not self._is_broken and not is_worn and self._wire.is_open

    @property
    def takes_8bit(self) -> bool:
        """Whether the next hop offers 8BITMIME."""
        return "8BITMIME" in self._extensions

    async def transmit(self, envelope: Envelope, content: Content) -> dict[str, Outcome]:
        """Hand over one mail; return outcomes as the port requires, without the recipients that the
        next hop does not take in the same transaction.

        Raises: SessionStale before the first reply, when only the content's beginning was read, so
        that the caller can use another session; what reading the content raises.
        """
        needs = Needs.of(envelope, content)
        if refused := refusal(needs, self._extensions):
            return dict.fromkeys(envelope.recipients, refused)
        transaction = Transaction(
            self._exchange, self._next_hop.protocol, self._extensions, self._timeouts
        )
        self.transactions += 1
        self._is_broken = True  # until the transaction has ended cleanly: an exception leaves it so
        recipients = envelope.recipients[: self._limit_of_recipients()]
        try:
            await transaction.run(envelope, recipients, needs, content)
        except WireError as error:
            is_unused = not transaction.outcomes and not transaction.accepted
            if self.transactions > 1 and is_unused and not isinstance(error, OutOfStep):
                raise SessionStale from error
            transaction.interrupted(error)
            return _with_rest(envelope, transaction.outcomes, text_of(error))
        self._is_broken = not transaction.is_clean
        if transaction.has_overflowed:
            self._most_recipients = transaction.accepted
        outcomes = transaction.outcomes
        goes_on = transaction.is_clean and any(
            each.kind is not OutcomeKind.DEFERRED for each in outcomes.values()
        )
        if goes_on:
            return {each: outcomes[each] for each in envelope.recipients if each in outcomes}
        return _with_rest(envelope, outcomes, "451 4.3.0 the next hop gave no answer")

    async def quit(self) -> None:
        """Send QUIT and close, within seconds. Never raises."""
        try:
            if not self._is_broken and self._wire.is_open:
                await self._exchange.ask(b"QUIT\r\n", self._timeouts.goodbye)
            await self._wire.close(self._timeouts.goodbye)
        except WireError:
            self._wire.abort()

    def abort(self) -> None:
        """Close at once."""
        self._is_broken = True
        self._wire.abort()

    def _limit_of_recipients(self) -> int | None:
        limits = (self._most_recipients, most_recipients(self._extensions))
        return min((each for each in limits if each is not None), default=None)

    async def _greet(self, ehlo_name: str) -> None:
        greeting = await self._exchange.reply(self._timeouts.greeting)
        if not greeting.is_positive:
            raise SessionRefused(str(greeting))
        await self._hello(ehlo_name)

    async def _hello(self, name: str) -> None:
        verb = "LHLO" if self._next_hop.protocol is Protocol.LMTP else "EHLO"
        command = self._timeouts.command
        reply = await self._exchange.ask(f"{verb} {name}\r\n".encode(), command)
        self._extensions = {}
        if reply.is_positive:
            for line in reply.lines[1:]:
                keyword, _, parameters = line.strip().partition(" ")
                self._extensions[keyword.upper()] = parameters
            return
        if verb == "EHLO" and reply.is_permanent:
            reply = await self._exchange.ask(f"HELO {name}\r\n".encode(), command)
        if not reply.is_positive:
            raise SessionRefused(str(reply))

    async def _secure(self, ehlo_name: str, context: ssl.SSLContext | None) -> None:
        if context is None or "STARTTLS" not in self._extensions:
            if self._next_hop.tls is TlsMode.REQUIRED:
                raise SessionRefused("451 4.7.5 the next hop does not offer STARTTLS")
            return
        reply = await self._exchange.ask(b"STARTTLS\r\n", self._timeouts.command)
        if reply.is_positive:
            await self._start_tls(context)
            await self._hello(ehlo_name)
        elif self._next_hop.tls is TlsMode.REQUIRED:
            raise SecuringFailed(str(reply))

    async def _start_tls(self, context: ssl.SSLContext | None) -> None:
        assert context is not None
        host = self._next_hop.host.rstrip(".")  # a certificate's names end in no dot (RFC 6066 3)
        try:
            await self._wire.start_tls(context, self._timeouts.command, server_hostname=host)
        except WireError as error:
            raise SecuringFailed(f"451 4.7.5 {self._why_not_secured(error)}") from error

    def _why_not_secured(self, error: WireError) -> str:
        if isinstance(error, InjectedBeforeTLS) and self._next_hop.tls is TlsMode.IMPLICIT:
            return _GREETS_IN_CLEAR
        refused = tls.refusal("the next hop", str(error))
        return refused.explain() if refused else str(error)


def _with_rest(
    envelope: Envelope, outcomes: Mapping[str, Outcome], text: str
) -> dict[str, Outcome]:
    """Return outcomes for all, in the envelope's order."""
    deferred = Outcome.deferred(text)
    return {recipient: outcomes.get(recipient, deferred) for recipient in envelope.recipients}
