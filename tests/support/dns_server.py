"""A name server on loopback that answers by a script, over UDP and TCP, well or badly.

A script has a line for each record, with absolute names without the final dot (`;` ends a line
too):

    example.org       MX    10 mx.example.org
    mx.example.org    A     192.0.2.1
    mx.example.org    AAAA  !SILENT
    example.net       !SERVFAIL

`TTL` gives the time to live of the records of a name, in seconds. `AD` says that all about a name
is validated by DNSSEC. A semicolon in a record is written `\\059`. `!` names a fault (`FAULTS`) of
all questions about a name, or of those of one type.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

TTL_SECONDS = 300
NEGATIVE_TTL_SECONDS = 120
"""The minimum of the SOA record."""

MAX_CNAMES = 16


class Received(NamedTuple):
    """One query, as it came."""

    name: str
    type: str
    transport: str
    has_edns: bool
    wants_ad: bool = False


class Exchange(NamedTuple):
    """A query, its right response, and the transport."""

    query: dns.message.Message
    response: dns.message.Message
    transport: str

    def wire(self) -> bytes:
        """Return the right response, truncated where it is too large for the transport."""
        octets = 65535 if self.transport == "TCP" else max(512, self.query.payload)
        try:
            return self.response.to_wire(max_size=octets)
        except dns.exception.TooBig:
            return next(_truncated(self))


Fault = Callable[[Exchange], Iterator[bytes]]
"""Yields the messages to send instead of the right one."""


def _rcode(rcode: dns.rcode.Rcode) -> Fault:
    def send(exchange: Exchange) -> Iterator[bytes]:
        response = dns.message.make_response(exchange.query, recursion_available=True)
        response.set_rcode(rcode)
        yield response.to_wire()

    return send


def _silent(exchange: Exchange) -> Iterator[bytes]:
    yield from ()


def _truncated(exchange: Exchange) -> Iterator[bytes]:
    if exchange.transport == "UDP":
        response = dns.message.make_response(exchange.query, recursion_available=True)
        response.flags |= dns.flags.TC
        yield response.to_wire()
    else:
        yield exchange.wire()


def _only_truncated(exchange: Exchange) -> Iterator[bytes]:
    return _truncated(exchange) if exchange.transport == "UDP" else iter(())


def _truncated_then_garbage(exchange: Exchange) -> Iterator[bytes]:
    return _truncated(exchange) if exchange.transport == "UDP" else _garbage(exchange)


def _forged_first(exchange: Exchange) -> Iterator[bytes]:
    """Another id with another answer, then the right message."""
    forged = dns.message.from_wire(exchange.wire())
    forged.id ^= 1
    forged.answer = []
    forged.set_rcode(dns.rcode.NXDOMAIN)
    yield forged.to_wire()
    yield exchange.wire()


def _wrong_question(exchange: Exchange) -> Iterator[bytes]:
    other = dns.message.make_query("other.example", "MX", id=exchange.query.id)
    response = dns.message.make_response(other, recursion_available=True)
    response.set_rcode(dns.rcode.NXDOMAIN)
    yield response.to_wire()
    yield exchange.wire()


def _other_case(exchange: Exchange) -> Iterator[bytes]:
    """Upper case wherever a name stands, question included."""
    text = exchange.response.to_text().upper()
    response = dns.message.from_text(_with_header(text, exchange.response))
    response.id = exchange.query.id
    yield response.to_wire()


def _with_header(text: str, response: dns.message.Message) -> str:
    """Return the text with the header of the message: it has words in lower case only."""
    records = text[text.index(";QUESTION") :]
    return f"id {response.id}\nopcode QUERY\nrcode NOERROR\nflags QR RD RA\n{records}"


def _referral(exchange: Exchange) -> Iterator[bytes]:
    """A lame server: it names other servers, and is neither authoritative nor recursive."""
    response = dns.message.make_response(exchange.query)
    response.authority.append(dns.rrset.from_text(".", 300, "IN", "NS", "a.root-servers.net."))
    yield response.to_wire()


def _ignorant(exchange: Exchange) -> Iterator[bytes]:
    """Nothing found, by a server that is neither authoritative nor recursive."""
    yield dns.message.make_response(exchange.query).to_wire()


def _garbage(exchange: Exchange) -> Iterator[bytes]:
    yield exchange.query.id.to_bytes(2, "big") + b"\x81\x80 no message"


def _no_edns(exchange: Exchange) -> Iterator[bytes]:
    if exchange.query.edns >= 0:
        yield from _rcode(dns.rcode.FORMERR)(exchange)
    else:
        yield exchange.wire()


def _no_soa(exchange: Exchange) -> Iterator[bytes]:
    exchange.response.authority.clear()
    yield exchange.wire()


def _cname_only(exchange: Exchange) -> Iterator[bytes]:
    """A server that leaves it to its client to follow CNAME records."""
    exchange.response.authority.clear()
    exchange.response.answer = exchange.response.answer[:1]
    exchange.response.set_rcode(dns.rcode.NOERROR)
    yield exchange.wire()


FAULTS: dict[str, Fault] = {
    "SERVFAIL": _rcode(dns.rcode.SERVFAIL),
    "REFUSED": _rcode(dns.rcode.REFUSED),
    "NOTIMP": _rcode(dns.rcode.NOTIMP),
    "SILENT": _silent,
    "TRUNCATED": _truncated,
    "TRUNCATED-ONLY": _only_truncated,
    "TRUNCATED-GARBAGE": _truncated_then_garbage,
    "FORGED-FIRST": _forged_first,
    "WRONG-QUESTION": _wrong_question,
    "OTHER-CASE": _other_case,
    "REFERRAL": _referral,
    "IGNORANT": _ignorant,
    "GARBAGE": _garbage,
    "NO-EDNS": _no_edns,
    "NO-SOA": _no_soa,
    "CNAME-ONLY": _cname_only,
}

_Key = tuple[str, str]


class DnsServer:
    """What is scripted, and the queries that came, in order."""

    def __init__(self, script: str = "") -> None:
        self.received: list[Received] = []
        self.port = 0
        self._records: dict[_Key, list[str]] = {}
        self._faults: dict[_Key, Fault] = {}
        self._seconds: dict[str, int] = {}
        self._validated: set[str] = set()
        self.write(script)

    @property
    def address(self) -> str:
        """The address and port, as settings write them."""
        return f"127.0.0.1:{self.port}"

    def write(self, script: str) -> None:
        """Add lines to the script."""
        for line in re.split(r"[;\n]", script):
            if not (words := line.split()):
                continue
            name, *rest = words
            if rest[0] == "TTL":
                self._seconds[name] = int(rest[1])
                continue
            if rest == ["AD"]:
                self._validated.add(name)
            elif rest[-1].startswith("!"):
                kind = rest[0] if len(rest) > 1 else "*"
                self._faults[name, kind] = FAULTS[rest[-1][1:]]
            else:
                self._records.setdefault((name, rest[0]), []).append(" ".join(rest[1:]))

    def answers(self, wire: bytes, transport: str) -> Iterator[bytes]:
        """Yield the messages that answer a query."""
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        kind = dns.rdatatype.to_text(question.rdtype)
        self.received.append(Received(name, kind, transport, query.edns >= 0, _wants_ad(query)))
        exchange = Exchange(query, self._right(query, name, kind), transport)
        fault = self._faults.get((name, kind)) or self._faults.get((name, "*"))
        yield from [exchange.wire()] if fault is None else fault(exchange)

    def _right(self, query: dns.message.Message, name: str, kind: str) -> dns.message.Message:
        response = dns.message.make_response(query, recursion_available=True)
        is_validated = _wants_ad(query)
        for _ in range(MAX_CNAMES):
            is_validated &= name in self._validated
            found = "CNAME" if (name, "CNAME") in self._records else kind
            texts = self._records.get((name, found), [])
            if texts:
                response.answer.append(_rrset(name, self._seconds.get(name), found, texts))
            if found == kind or not texts:
                break
            name = texts[0]
        if not texts:
            if not any(each == name for each, _ in self._records):
                response.set_rcode(dns.rcode.NXDOMAIN)
            soa = f"ns.example. admin.example. 1 3600 600 86400 {NEGATIVE_TTL_SECONDS}"
            response.authority.append(dns.rrset.from_text(".", 3600, "IN", "SOA", soa))
        if is_validated:
            response.flags |= dns.flags.AD
        return response


def _wants_ad(query: dns.message.Message) -> bool:
    return bool(query.flags & dns.flags.AD)


def _rrset(name: str, seconds: int | None, kind: str, texts: list[str]) -> dns.rrset.RRset:
    """Names in records are absolute, without the final dot."""
    named = kind in ("MX", "CNAME", "NS")
    absolute = [f"{text.rstrip('.')}." if named else text for text in texts]
    return dns.rrset.from_text(f"{name}.", seconds or TTL_SECONDS, "IN", kind, *absolute)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        for message in self._server.answers(data, "UDP"):
            self._transport.sendto(message, addr)


@asynccontextmanager
async def running(
    server: DnsServer, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[DnsServer]:
    """Serve on a free port, or on this one, the same for both transports."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = int.from_bytes(await reader.readexactly(2), "big")
            for message in server.answers(await reader.readexactly(size), "TCP"):
                writer.write(len(message).to_bytes(2, "big") + message)
            await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, host, port)
    server.port = listener.sockets[0].getsockname()[1]
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind((host, server.port))
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Datagrams(server), sock=bound
    )
    try:
        yield server
    finally:
        transport.close()
        listener.close()
        await listener.wait_closed()
