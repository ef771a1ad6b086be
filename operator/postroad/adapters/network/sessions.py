"""A session with a next hop: opens it, begins transactions one after the other, and quits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from postroad.adapters.network.client import ClientWire
from postroad.adapters.network.commands import Needs, most_mails, most_recipients, refusal
from postroad.adapters.network.connecting import Reached
from postroad.adapters.network.content import OpenContent
from postroad.adapters.network.exchange import Exchange, OutOfStep, SessionRefused, text_of
from postroad.adapters.network.opening import Opening, SecuringFailed, SessionTerms
from postroad.adapters.network.timeouts import Timeouts
from postroad.adapters.network.transactions import ClientTransaction, Outgoing
from postroad.adapters.network.wire import WireError
from postroad.domain.mail import Envelope, Outcome, OutcomeKind
from postroad.domain.next_hops import NextHop, TlsMode


class ClientSession:
    """One open session. Not for concurrent use."""

    def __init__(
        self,
        exchange: Exchange,
        next_hop: NextHop,
        extensions: Mapping[str, str],
        timeouts: Timeouts,
    ) -> None:
        self.exchange = exchange
        self._next_hop = next_hop
        self._timeouts = timeouts
        self._extensions = extensions
        self._most_recipients: int | None = None
        self._is_broken = False
        self.transactions = 0
        """Transactions so far, failed ones too."""

    @classmethod
    async def open(cls, reached: Reached, terms: SessionTerms) -> ClientSession:
        """Connect, greet, start TLS as the next hop's mode requires, and log in. With opportunistic
        TLS, a next hop whose TLS is broken gets the mail in clear.

        Raises: SessionRefused.
        """
        if terms.authentication is not None:
            terms.authentication.check()
        if terms.next_hop.tls is not TlsMode.OPPORTUNISTIC:
            return await cls._open(reached, terms)
        in_clear = replace(terms, context=None)
        if terms.broken_tls.has(terms.next_hop):
            return await cls._open(reached, in_clear)
        try:
            return await cls._open(reached, terms)
        except SecuringFailed:
            session = await cls._open(reached, in_clear)
            terms.broken_tls.add(terms.next_hop)
            return session

    @classmethod
    async def _open(cls, reached: Reached, terms: SessionTerms) -> ClientSession:
        try:
            wire = await reached.connect(terms.timeouts.connect)
        except WireError as error:
            raise SessionRefused(f"451 4.4.1 {error}") from error
        exchange = Exchange(wire)
        try:
            extensions = await Opening(exchange, terms).run()
        except BaseException as error:
            wire.abort()
            if isinstance(error, WireError) and not isinstance(error, SessionRefused):
                raise SessionRefused(text_of(error)) from error
            raise
        return cls(exchange, terms.next_hop, extensions, terms.timeouts)

    @property
    def wire(self) -> ClientWire:
        """The connection."""
        return self.exchange.wire

    @property
    def is_worn(self) -> bool:
        """Whether the next hop takes no more mails in this session."""
        limit = most_mails(self._extensions)
        return limit is not None and self.transactions >= limit

    @property
    def is_pipelined(self) -> bool:
        """Whether commands may be sent before replies to others have come."""
        return "PIPELINING" in self._extensions

    @property
    def takes_8bit(self) -> bool:
        """Whether the next hop offers 8BITMIME."""
        return "8BITMIME" in self._extensions

    def begin(self, envelope: Envelope, content: OpenContent) -> ClientTransaction | Outcome:
        """Return the next transaction, or the outcome of a mail that this next hop cannot take at
        all. Until the transaction is settled, the session is broken."""
        needs = Needs.of(envelope, content)
        if refused := refusal(needs, self._extensions):
            return refused
        self.transactions += 1
        self._is_broken = True  # an exception leaves it so
        recipients = envelope.recipients[: self._limit_of_recipients()]
        mail = Outgoing(envelope, recipients, needs, content)
        return ClientTransaction(
            self.exchange,
            self._next_hop,
            self._extensions,
            self._timeouts,
            mail,
            is_first=self.transactions == 1,
        )

    async def send(self, transaction: ClientTransaction) -> None:
        """Send the first commands of a transaction. Raises: WireError."""
        await self.exchange.send(transaction.first_group, self._timeouts.command)

    def is_stale(self, transaction: ClientTransaction, error: WireError) -> bool:
        """Whether a transaction failed for no reason but that the session had ended before it."""
        unused = not (transaction.is_first or transaction.is_answered)
        return unused and not isinstance(error, OutOfStep)

    def interrupted(
        self, transaction: ClientTransaction, envelope: Envelope, error: WireError
    ) -> dict[str, Outcome]:
        """Return the outcomes of a transaction that ended with an error."""
        transaction.interrupted(error)
        return _with_rest(envelope, transaction.outcomes, text_of(error))

    def settled(self, transaction: ClientTransaction, envelope: Envelope) -> dict[str, Outcome]:
        """Return the outcomes of a transaction that was carried through."""
        self._is_broken = not transaction.is_clean
        self.learn(transaction)
        outcomes = transaction.outcomes
        goes_on = transaction.is_clean and any(
            each.kind is not OutcomeKind.DEFERRED for each in outcomes.values()
        )
        if goes_on:
            return {each: outcomes[each] for each in envelope.recipients if each in outcomes}
        return _with_rest(envelope, outcomes, "451 4.3.0 the next hop gave no answer")

    def learn(self, transaction: ClientTransaction) -> None:
        """Remember how many recipients the next hop takes in one transaction."""
        if transaction.has_overflowed:
            self._most_recipients = transaction.accepted

    async def quit(self) -> None:
        """Send QUIT and close, within seconds. Never raises."""
        try:
            if not self._is_broken and self.wire.is_open:
                await self.exchange.ask(b"QUIT\r\n", self._timeouts.goodbye)
            await self.wire.close(self._timeouts.goodbye)
        except WireError:
            self.wire.abort()

    def abort(self) -> None:
        """Close at once."""
        self._is_broken = True
        self.wire.abort()

    def _limit_of_recipients(self) -> int | None:
        limits = (self._most_recipients, most_recipients(self._extensions))
        return min((each for each in limits if each is not None), default=None)


def _with_rest(
    envelope: Envelope, outcomes: Mapping[str, Outcome], text: str
) -> dict[str, Outcome]:
    """Return outcomes for all, in the envelope's order."""
    deferred = Outcome.deferred(text)
    return {recipient: outcomes.get(recipient, deferred) for recipient in envelope.recipients}
