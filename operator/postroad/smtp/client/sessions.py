"""A session with a next hop: opens it, begins transactions one after the other, and quits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from postroad.domain.mail.mail import (
    ConnectionFacts,
    Envelope,
    Outcome,
    OutcomeKind,
    Responder,
)
from postroad.domain.smtp.next_hops import NextHop, Protocol
from postroad.smtp.client.client import (
    ClientWire,
    Exchange,
    OutOfStep,
    ServiceUnavailable,
    SessionRefused,
    deferred_by,
    text_of,
)
from postroad.smtp.client.connecting import Reached
from postroad.smtp.client.opening import Opening, SecuringFailed, SessionTerms
from postroad.smtp.client.transaction import chunks
from postroad.smtp.client.transaction.chunks import ChunkTransaction
from postroad.smtp.client.transaction.commands import (
    Needs,
    most_mails,
    most_recipients,
    refusals,
    takes_8bit,
)
from postroad.smtp.client.transaction.content import OpenContent
from postroad.smtp.client.transaction.transactions import ClientTransaction, MailReplies, Outgoing
from postroad.smtp.wire import ConnectionLost, TooSlow, WireError
from postroad.telemetry.metrics import PLAIN_RETURN_PATHS


class ClientSession:
    """One open session. Not for concurrent use."""

    def __init__(
        self,
        exchange: Exchange,
        extensions: Mapping[str, str],
        terms: SessionTerms,
        hello: bytes,
    ) -> None:
        self.exchange = exchange
        self.wire = exchange.wire
        self._terms = terms
        self._hello = hello
        self.next_hop = terms.next_hop
        self._timeouts = terms.timeouts
        facts = _facts_of(self.wire, self.next_hop)
        # Its offer holds over TLS alone whose certificate was verified (RFC 8689 4.2.1).
        if not facts.verified and "REQUIRETLS" in extensions:
            extensions = {name: its for name, its in extensions.items() if name != "REQUIRETLS"}
        self._extensions = extensions
        is_lmtp = self.next_hop.protocol is Protocol.LMTP
        self.is_pipelined = "PIPELINING" in extensions
        """True if commands may be sent before replies to others have come."""
        self._responder = Responder(
            self.next_hop.host,
            "DSN" in extensions,
            is_lmtp,
            connection=facts,
        )
        may_chunk = self.next_hop.chunking and not is_lmtp
        self._may_chunk = may_chunk and "CHUNKING" in extensions and self.is_pipelined
        self._most_mails = most_mails(extensions)
        self._most_recipients = most_recipients(extensions)
        self._is_broken = False
        self._has_worked = False
        self.transactions = 0
        """Transactions so far, failed ones too."""
        self._last: ClientTransaction | None = None

    @classmethod
    async def open(cls, reached: Reached, terms: SessionTerms) -> ClientSession:
        """Connect, greet, start TLS as the next hop's mode requires, and log in. With opportunistic
        TLS, a next hop whose TLS is broken gets the mail in clear. Raises: SessionRefused."""
        if terms.authentication is not None:
            terms.authentication.check()
        if not terms.may_go_in_clear:
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
        opening = Opening(exchange, terms)
        try:
            extensions = await opening.run()
        except BaseException as error:
            wire.abort()
            if isinstance(error, WireError) and not isinstance(error, SessionRefused):
                raise SessionRefused(text_of(error)) from error
            raise
        return cls(exchange, extensions, terms, opening.hello)

    @property
    def is_worn(self) -> bool:
        """True if the next hop takes no more mails in this session."""
        return self._most_mails is not None and self.transactions >= self._most_mails

    @property
    def takes_chunks(self) -> bool:
        """True if mails may be sent as chunks behind one another. The first mail of a session shows
        that the next hop does not close behind it, which would leave all of them in doubt."""
        return self._may_chunk and self._has_worked and not self._terms.unfit.has(self.next_hop)

    @property
    def takes_8bit(self) -> bool:
        """True if the next hop takes octets above 127."""
        return takes_8bit(self._extensions)

    @property
    def takes_utf8(self) -> bool:
        """True if the next hop takes addresses that are not ASCII."""
        return "SMTPUTF8" in self._extensions

    def begin(self, envelope: Envelope, content: OpenContent) -> Outgoing | Mapping[str, Outcome]:
        """Begin the next transaction: `by_data` or `by_chunk` carries it out; or return outcomes
        for recipients that cannot have the mail by this next hop. Until the transaction is settled,
        the session is broken."""
        needs = Needs.of(envelope, content)
        if needs.requires_tls and self.next_hop.socket is not None:  # it stays on this machine
            needs = needs._replace(requires_tls=False)
        if refused := refusals(envelope, needs, self._extensions):
            return refused
        self.transactions += 1
        self._is_broken = True  # an exception leaves it so
        recipients = envelope.recipients[: self._most_recipients]
        if self.next_hop.verp and envelope.sender is not None:
            recipients = recipients[:1]
            path = self._terms.path_of(envelope.sender, recipients[0], envelope.tenant)
            if path is None:
                PLAIN_RETURN_PATHS.inc()
            else:
                envelope = replace(envelope, sender=path)
        is_first = self.transactions == 1
        return Outgoing(envelope, recipients, needs, content, self._responder, is_first)

    def by_data(self, mail: Outgoing, *, follows_chunks: bool = False) -> ClientTransaction:
        self._last = ClientTransaction(
            self.exchange,
            self.next_hop.protocol,
            self._extensions,
            self._timeouts,
            mail,
            behind_chunks=self._hello if follows_chunks else None,
        )
        return self._last

    def may_be_chunk(self, mail: Outgoing) -> bool:
        """True if a mail may be sent as a chunk, if another one follows it."""
        return self.takes_chunks and chunks.fits(mail)

    def by_chunk(self, mail: Outgoing) -> tuple[ChunkTransaction, bytes]:
        """Return the transaction of a mail that is sent as a chunk, and what is to be sent."""
        commands = mail.commands(self._extensions)
        transaction = ChunkTransaction(self.exchange, self._timeouts, mail, len(commands))
        return transaction, chunks.octets_of(mail, commands)

    async def send(self, octets: bytes) -> None:
        """Send the first commands of transactions. Raises: WireError."""
        await self.exchange.send(octets, self._timeouts.command)

    def is_stale(self, transaction: ClientTransaction, error: WireError) -> bool:
        """True if a transaction failed for no reason but that the session had ended before it."""
        unused = not (transaction.is_first or transaction.is_answered)
        return unused and not isinstance(error, OutOfStep)

    def interrupted(
        self, transaction: ClientTransaction, envelope: Envelope, error: WireError
    ) -> dict[str, Outcome]:
        """Return the outcomes of a transaction that ended with an error."""
        transaction.interrupted(error)
        return _with_rest(envelope, transaction.outcomes, self.deferred_by(error))

    def deferred_by(self, error: WireError) -> Outcome:
        """Return the outcome of recipients of whom nothing but the session's end is known."""
        return deferred_by(error, self._responder)

    def left(self, transaction: ChunkTransaction, error: WireError) -> dict[str, Outcome] | None:
        """Return the outcomes of a chunk whose replies do not count, because the connection ended
        or they were not in step; None: it was not taken. A next hop that leaves mails in doubt gets
        no chunks for a while."""
        if not transaction.ended(error):
            return None
        outcomes = transaction.outcomes
        is_in_doubt = any(each.kind is OutcomeKind.DEFERRED for each in outcomes.values())
        if is_in_doubt and not isinstance(error, ServiceUnavailable):
            self._terms.unfit.add(self.next_hop)
        return outcomes

    def settled(self, transaction: MailReplies, envelope: Envelope) -> dict[str, Outcome]:
        """Return the outcomes of a transaction that was carried through."""
        self._is_broken = not transaction.is_clean
        if not self._has_worked:
            self._has_worked = transaction.is_clean
            self._note_tls(transaction)
        self.learn(transaction)
        outcomes = transaction.outcomes
        goes_on = transaction.is_clean and any(
            each.kind is not OutcomeKind.DEFERRED for each in outcomes.values()
        )
        if goes_on:
            return {each: outcomes[each] for each in envelope.recipients if each in outcomes}
        no_answer = Outcome.deferred("451 4.3.0 the next hop gave no answer")
        return _with_rest(envelope, outcomes, no_answer)

    def learn(self, transaction: MailReplies) -> None:
        """Remember how many recipients the next hop takes in one transaction."""
        if transaction.has_overflowed:
            self._most_recipients = transaction.accepted

    def _note_tls(self, transaction: MailReplies) -> None:
        """Remember by the first mail of a session whether TLS works, or is wanted after all."""
        if self.wire.is_secured and transaction.is_clean:
            self._terms.fit_for_tls.add(self.next_hop)
        elif any(each.text.startswith("530") for each in transaction.outcomes.values()):
            self._terms.broken_tls.forget(self.next_hop)

    def ended(self, error: WireError) -> None:
        """Note what ended the session. Mail goes in clear next, where it may, if the connection was
        lost under TLS before a mail was sent: for this side, the handshake succeeds although the
        server refuses it, or breaks behind it."""
        is_lost = isinstance(error, ConnectionLost | TooSlow) and self.wire.is_secured
        was_sent = self._has_worked or (self._last is not None and self._last.is_ended)
        may_break = self._terms.may_go_in_clear and not self._terms.fit_for_tls.has(self.next_hop)
        if is_lost and not was_sent and may_break:
            self._terms.broken_tls.add(self.next_hop)

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


def _facts_of(wire: ClientWire, next_hop: NextHop) -> ConnectionFacts:
    tls, cipher = wire.cipher or ("", "")
    address = wire.peer_address
    if address is None:  # a socket of this machine
        return ConnectionFacts(tls=tls, cipher=cipher)
    verified = bool(tls) and (next_hop.tls.is_verified or next_hop.by_tlsa)
    return ConnectionFacts(address, next_hop.port, wire.local_address, tls, cipher, verified)


def _with_rest(
    envelope: Envelope, outcomes: Mapping[str, Outcome], of_others: Outcome
) -> dict[str, Outcome]:
    """Return outcomes for all, in the envelope's order."""
    return {recipient: outcomes.get(recipient, of_others) for recipient in envelope.recipients}
