"""Packets of the milter protocol, version 6, as an MTA sends and reads them. Pure.

Source: Sendmail, libmilter/mfdef.h."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from postroad.domain.mail.mail import domain_of
from postroad.domain.mail.shapes import MAX_LINE
from postroad.domain.smtp.next_hops import address_literal
from postroad.intake.filters.decisions import (
    FilterDecision,
    FilteredMail,
    FilterFailed,
    HeaderChange,
    check_number,
    field_name,
)

VERSION = 6
ACTIONS = 0x7F
"""Actions that are offered, all but recipients with parameters of ESMTP and lists of macros."""

STEPS = 0x1FFFFF & ~0x800
"""Steps and replies that a milter may leave out, all but recipients that were refused, as it gets
none. Commands that are unknown are among them, as rspamd wants them: it hears of none either."""

SKIP, LEADING_SPACE = 0x400, 0x100000
_NO_STEP = {b"C": 0x1, b"H": 0x2, b"M": 0x4, b"R": 0x8, b"T": 0x200, b"L": 0x20, b"N": 0x40}
_NO_STEP[b"B"] = 0x10
_NO_REPLY = {b"C": 0x1000, b"H": 0x2000, b"M": 0x4000, b"R": 0x8000, b"T": 0x10000, b"L": 0x80}
_NO_REPLY |= {b"N": 0x40000, b"B": 0x80000}
_NEEDED = {b"h": 0x1, b"i": 0x1, b"m": 0x10, b"b": 0x2, b"+": 0x4, b"-": 0x8, b"q": 0x20}
_NEEDED[b"e"] = 0x40
"""Action that a change needs."""

_TLS = "{tls_version}", "{cipher}"

MAX_DATA = 65535
"""Octets of a packet's data that libmilter reads."""

_ENDS = {
    b"c": FilterDecision(),
    b"a": FilterDecision(),
    b"r": FilterDecision("reject"),
    b"t": FilterDecision("defer"),
    b"d": FilterDecision("discard"),
    b"4": FilterDecision("defer"),
    b"f": FilterDecision("defer"),
}


def packet(command: bytes, *parts: bytes) -> bytes:
    """Return a packet.

    >>> packet(b"H", b"name", b"\\0")
    b'\\x00\\x00\\x00\\x06Hname\\x00'
    """
    data = b"".join(parts)
    return struct.pack(">I", len(data) + 1) + command + data


_OPTIONS = struct.Struct(">III")
OFFER = packet(b"O", _OPTIONS.pack(VERSION, ACTIONS, STEPS))


class Negotiated:
    """Answer of a milter to the offer. Raises: FilterFailed, where it wants what is not offered."""

    def __init__(self, command: bytes, data: bytes) -> None:
        if command != b"O" or len(data) < 12:
            raise FilterFailed("it does not negotiate as a milter")
        self.version, self.actions, self.steps = _OPTIONS.unpack_from(data)
        if not 2 <= self.version <= VERSION or self.actions & ~ACTIONS or self.steps & ~STEPS:
            raise FilterFailed("it wants a version, actions or steps that were not offered")

    def has_step(self, command: bytes) -> bool:
        is_known = command != b"T" or self.version >= 4
        return is_known and not self.steps & _NO_STEP.get(command, 0)

    def has_reply(self, command: bytes) -> bool:
        return not self.steps & _NO_REPLY.get(command, 0)


_Step = tuple[bytes, bytes, Mapping[str, str | None]]


def steps_of(
    mail: FilteredMail, fields: list[bytes], negotiated: Negotiated
) -> Iterator[tuple[bytes, bytes]]:
    """Yield what comes before the body: each command with its packets, macros first."""
    for command, data, macros in (*_envelope(mail), *_header(mail, fields, negotiated)):
        if negotiated.has_step(command):
            given = [_text(name) + _text(text) for name, text in macros.items() if text]
            yield command, packet(b"D", command, *given) * bool(given) + packet(command, data)


def _envelope(mail: FilteredMail) -> Iterator[_Step]:
    address, sender = mail.client.address, mail.sender or ""
    yield b"C", _connection(address), {"j": mail.hostname, "{client_addr}": address}
    yield b"H", _text(mail.client.host or ""), dict(zip(_TLS, mail.tls or (), strict=False))
    login = {"{auth_type}": mail.user and "SASL", "{auth_authen}": mail.user}
    yield b"M", _text(f"<{sender}>"), {"i": mail.name, **login, **_mailbox("mail", sender)}
    for each in mail.recipients:
        yield b"R", _text(f"<{each}>"), _mailbox("rcpt", each)


def _header(mail: FilteredMail, fields: list[bytes], negotiated: Negotiated) -> Iterator[_Step]:
    queued = {"i": mail.name}
    yield b"T", b"", queued
    for octets in fields:
        name, value = field_name(octets), octets.partition(b":")[2].replace(b"\r\n", b"\n")
        if not negotiated.steps & LEADING_SPACE:
            value = value.lstrip(b" \t")
        # A longer packet than libmilter reads would end the dialogue.
        yield b"L", name[:MAX_LINE] + b"\0" + value[: MAX_DATA - MAX_LINE - 2] + b"\0", {}
    yield b"N", b"", queued


def end_of(mail: FilteredMail) -> bytes:
    """Return the packets of the end of a mail."""
    return packet(b"D", b"E", _text("i"), _text(mail.name)) + packet(b"E")


def _connection(address: str | None) -> bytes:
    if not address:
        return _text("unknown") + b"U"
    family = b"6" if ip_address(address.partition("%")[0]).version == 6 else b"4"
    return _text(address_literal(address)) + family + b"\0\0" + _text(address)


def _mailbox(kind: str, address: str) -> dict[str, str]:
    host = domain_of(address) if address else ""
    return {f"{{{kind}_addr}}": address, f"{{{kind}_host}}": host, f"{{{kind}_mailer}}": "esmtp"}


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape") + b"\0"


def _texts(data: bytes, count: int) -> list[str]:
    *found, rest = data.split(b"\0")
    if rest or len(found) != count:
        raise FilterFailed("it sends a packet that cannot be read")
    return [each.decode("utf-8", "surrogateescape") for each in found]


def ending(command: bytes, data: bytes) -> FilterDecision:
    """Return the decision that a reply is, as far as it is one. Raises: FilterFailed."""
    if (found := _ENDS.get(command)) is not None and not data:
        return found
    if command != b"y":
        raise FilterFailed("it sends a packet that may not stand there")
    (reply,) = _texts(data, 1)
    return FilterDecision("reject" if reply[:1] == "5" else "defer", reply.replace("%%", "%"))


class Changes:
    """Changes that a milter wants at the end of a mail."""

    def __init__(self, actions: int) -> None:
        self._actions = actions
        self._headers: list[HeaderChange] = []
        self._removals = 0
        """Of fields."""

        self._added: list[str] = []
        self._removed: list[str] = []
        self._sender: str | None = None
        self._hold: str | None = None
        self._body: bytearray | None = None

    def add(self, command: bytes, data: bytes) -> bool:
        """Take a packet; return False where it is no change. Raises: FilterFailed."""
        if (needed := _NEEDED.get(command)) is None:
            return False
        if not self._actions & needed:
            raise FilterFailed("it makes a change that it did not negotiate")
        if command == b"b":
            self._body = self._body or bytearray()
            self._body += data
        elif command in (b"h", b"i", b"m"):
            self._headers.append(_header_change(command, data))
            self._removals += self._headers[-1].action == "remove"
        elif command == b"q":
            self._hold = _texts(data, 1)[0]
        else:
            address = _texts(data, 1)[0].removeprefix("<").removesuffix(">")
            if command == b"e":
                self._sender = address
            else:
                (self._added if command == b"+" else self._removed).append(address)
        check_number(len(self._headers) - self._removals, self._removals)
        check_number(len(self._added), len(self._removed))
        return True

    def decision(self) -> FilterDecision:
        """Return the decision to accept a mail with these changes."""
        return FilterDecision(
            hold=self._hold,
            headers=tuple(self._headers),
            sender=self._sender,
            add_recipients=tuple(self._added),
            remove_recipients=tuple(self._removed),
            body=None if self._body is None else bytes(self._body),
        )


def _header_change(command: bytes, data: bytes) -> HeaderChange:
    at = 0 if command == b"h" else 4
    name, value = _texts(data[at:], 2)
    if command == b"h":
        return HeaderChange("add", name, value)
    (index,) = struct.unpack_from(">I", data)
    if command == b"i":
        return HeaderChange("insert", name, value, index)
    return HeaderChange("change" if value else "remove", name, value, index)
