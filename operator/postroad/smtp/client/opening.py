"""Steps before the first mail on a connection: greeting, EHLO, TLS, AUTH.

Source: RFC 5321 3.1, 4.1.1.1; RFC 3207; RFC 8314 3; RFC 4954."""

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from postroad import tls
from postroad.domain.mail.return_paths import plain_path
from postroad.domain.smtp.next_hops import NextHop, OldestTls, Protocol, TlsMode, address_literal
from postroad.domain.smtp.replies import Reply
from postroad.errors import InvalidSettings, TlsRefused
from postroad.routing.securing import TlsaRecords
from postroad.smtp.client.authentication import Authentication
from postroad.smtp.client.client import ClientWire, Exchange, SessionRefused, text_of
from postroad.smtp.client.connecting import RememberedHops, Timeouts
from postroad.smtp.wire import InjectedBeforeTLS, WireError
from postroad.tls import OLDEST_TLS

_GREETS_IN_CLEAR = (
    "the next hop offers TLS at this port by STARTTLS only (set its port for implicit TLS, or "
    "use the mode `required`)"
)


PathOf = Callable[[str, str, str | None], str | None]
"""Returns the reverse-path of a mail by sender, recipient and tenant; None: as it is."""


class SecuringFailed(SessionRefused):
    """The next hop offers TLS, and it could not be started, or EHLO failed behind it."""


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """Terms that all sessions with one next hop share. `ehlo_name`: None: the address literal of
    each connection's local address. `context`: what TLS is started with; None: no TLS."""

    next_hop: NextHop
    ehlo_name: str | None
    context: ssl.SSLContext | None
    timeouts: Timeouts
    authentication: Authentication | None = None
    certificates: TlsaRecords | None = None
    """Name that the certificate of a next hop `by_tlsa` has to match."""
    broken_tls: RememberedHops = field(default_factory=RememberedHops)
    """Next hops with opportunistic TLS that offer it and with which it breaks. No other mail ever
    goes in clear, and none with a login."""
    unfit: RememberedHops = field(default_factory=RememberedHops)
    """Those that offer CHUNKING, and left mails in doubt that were sent so."""
    fit_for_tls: RememberedHops = field(default_factory=RememberedHops)
    """Those that took mail over TLS: a connection that is lost says nothing about it."""
    path_of: PathOf = plain_path
    """Names the recipient, with a next hop that has `verp`."""

    @property
    def may_go_in_clear(self) -> bool:
        """True if mail goes in clear where TLS breaks."""
        return self.next_hop.tls is TlsMode.OPPORTUNISTIC and self.authentication is None


class Opening:
    """Opens one connection. `run` once."""

    def __init__(self, exchange: Exchange, terms: SessionTerms) -> None:
        self._exchange = exchange
        self._terms = terms
        self._next_hop = terms.next_hop
        self._timeouts = terms.timeouts
        self._extensions: dict[str, str] = {}
        self.hello = b""
        """EHLO, or LHLO, as it was sent."""

    async def run(self) -> dict[str, str]:
        """Greet, start TLS as the next hop's mode requires, log in. Return the extensions. Raises:
        SessionRefused, WireError."""
        mode = self._next_hop.tls
        name = self._terms.ehlo_name or address_literal(self._exchange.wire.local_address)
        if mode is TlsMode.IMPLICIT:
            await self._start_tls()
        await self._greet(name)
        if mode not in (TlsMode.NONE, TlsMode.IMPLICIT):
            await self._secure(name)
        if self._terms.authentication is not None:
            is_verified = mode.is_verified and self._exchange.wire.is_secured
            await self._terms.authentication.run(
                self._exchange, self._extensions, self._timeouts, is_verified=is_verified
            )
        return self._extensions

    async def _greet(self, name: str) -> None:
        greeting = await self._exchange.reply(self._timeouts.greeting)
        if not greeting.is_positive:
            raise SessionRefused(str(greeting))
        await self._hello(name)

    async def _hello(self, name: str) -> None:
        verb = "LHLO" if self._next_hop.protocol is Protocol.LMTP else "EHLO"
        command = self._timeouts.command
        self.hello = f"{verb} {name}\r\n".encode()
        reply = await self._exchange.ask(self.hello, command)
        self._extensions = extensions_of(reply)
        if reply.is_positive:
            return
        if verb == "EHLO" and reply.is_permanent:
            reply = await self._exchange.ask(f"HELO {name}\r\n".encode(), command)
        if not reply.is_positive:
            raise SessionRefused(str(reply))

    async def _secure(self, name: str) -> None:
        if self._terms.context is None or "STARTTLS" not in self._extensions:
            if self._next_hop.tls.never_in_clear:
                raise SessionRefused("451 4.7.5 the next hop does not offer STARTTLS")
            return
        try:
            reply = await self._exchange.ask(b"STARTTLS\r\n", self._timeouts.command)
            if reply.is_positive:
                await self._start_tls()
                await self._hello(name)
                return
        except WireError as error:  # TLS 1.3 has the server's alerts behind the client's handshake
            raise SecuringFailed(text_of(error)) from error
        if self._next_hop.tls.never_in_clear or reply.is_unclear:
            raise SecuringFailed(f"451 4.7.5 the next hop refused STARTTLS: {reply}")

    async def _start_tls(self) -> None:
        context, wire, records = self._terms.context, self._exchange.wire, self._terms.certificates
        assert context is not None
        if self._next_hop.by_tlsa and not (records and records.records):
            raise SecuringFailed("451 4.7.5 there is no TLSA record of the next hop")
        host = records.name if records else self._next_hop.host
        host = host.rstrip(".")  # a certificate's names end in no dot (RFC 6066 3)
        try:
            await wire.start_tls(context, self._timeouts.command, server_hostname=host)
        except WireError as error:
            raise SecuringFailed(f"451 4.7.5 {self._why_not_secured(error)}") from error
        if records:
            _compare(wire, host, records)

    def _why_not_secured(self, error: WireError) -> str:
        if isinstance(error, InjectedBeforeTLS) and self._next_hop.tls is TlsMode.IMPLICIT:
            return _GREETS_IN_CLEAR
        refused = tls.refusal("the next hop", str(error))
        return refused.explain() if refused else str(error)


def extensions_of(reply: Reply) -> dict[str, str]:
    """Return what a reply to EHLO offers; nothing, where it refuses. A keyword that stands on
    several lines has the parameters of each, on lines of their own. Old servers write `AUTH=`."""
    extensions: dict[str, str] = {}
    for line in reply.lines[1:] if reply.is_positive else ():
        keyword, *parameters = re.split(r"[\s=]", line.strip(), maxsplit=1)
        before = extensions.get(keyword.upper(), "")
        extensions[keyword.upper()] = "\n".join((before, *parameters)).strip()
    return extensions


def _compare(wire: ClientWire, host: str, records: TlsaRecords) -> None:
    """Compare the certificate with TLSA records. Raises: SecuringFailed."""
    from postroad.smtp.client import dane

    try:
        dane.verify(wire.certificates(), host, records.records, datetime.now(UTC))
    except dane.CertificateRefused as error:
        raise SecuringFailed(f"451 4.7.5 {error}") from error


def ehlo_name_to(next_hop: NextHop, usual: str | None) -> str | None:
    """Return the name for EHLO to a next hop; `usual`: the process's. None: the address of each
    connection, which one to a Unix socket has not."""
    if next_hop.socket is not None:
        return usual or "localhost"
    return (next_hop.source and next_hop.source.ehlo_name) or usual


def context_for(
    mode: TlsMode,
    ca_file: Path | None,
    oldest: OldestTls = OldestTls.TLS_1_2,
    *,
    by_tlsa: bool = False,
) -> ssl.SSLContext | None:
    """Return what TLS to a next hop of this mode is started with; None: no TLS. `ca_file` is read
    again where it has changed. `by_tlsa`: the certificate is compared afterwards. Raises:
    InvalidSettings."""
    if mode is TlsMode.NONE:
        return None
    version = ssl.TLSVersion.TLSv1_3 if oldest is OldestTls.TLS_1_3 else OLDEST_TLS
    if by_tlsa or not mode.is_verified:
        return _unverified(version)
    try:
        return tls.verifying_context(ca_file, version)
    except TlsRefused as error:
        raise InvalidSettings(str(error), hint=error.hint) from error


@lru_cache(maxsize=2)
def _unverified(oldest: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = oldest
    return context
