"""Next hops: which server mail is handed to, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from uuid import UUID

from postroad.domain.smtp.sasl_client import Mechanism
from postroad.errors import InvalidInput

HOSTNAME_PATTERN = (
    "^(([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?[.])+[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?"
    r"|\[([0-9]{1,3}([.][0-9]{1,3}){3}|IPv6:[0-9A-Fa-f:.]+)\])$"
)
"""The name of a host in SMTP: a fully qualified name (A-labels) or an address literal.
Source: RFC 5321 2.3.5, 4.1.1.1, 4.1.3."""

SOCKET_SCHEME = "unix:"
"""Stands before the path of a Unix socket where a host could stand, too."""

MAX_SOCKET = 107
"""Octets of the path of a Unix socket, as Linux takes it (`man 7 unix`)."""

_FORM = re.compile(
    r"(?:\[(?P<literal>[0-9A-Fa-f:.]+)\]|(?!\d+(?::|$))(?P<host>[^\s:\[\]]+))(?::(?P<port>\d+))?"
)
"""Digits alone are no host: who writes them means a port."""


class TlsMode(StrEnum):
    """Degree to which a connection must be secured. `opportunistic` encrypts where it can and
    verifies nothing; `encrypted` verifies nothing and never sends in clear; `required` verifies
    the certificate, too; `implicit` does the same with TLS from the first octet on.
    Source: RFC 3207; RFC 8314 3."""

    NONE = "none"
    OPPORTUNISTIC = "opportunistic"
    ENCRYPTED = "encrypted"
    REQUIRED = "required"
    IMPLICIT = "implicit"

    @property
    def never_in_clear(self) -> bool:
        """True if mail leaves only over TLS."""
        return self in (TlsMode.ENCRYPTED, TlsMode.REQUIRED, TlsMode.IMPLICIT)

    @property
    def is_verified(self) -> bool:
        """True if mail leaves only over TLS, to a server with a certificate that verifies."""
        return self in (TlsMode.REQUIRED, TlsMode.IMPLICIT)

    @property
    def default_port(self) -> int:
        """The port of a next hop named without one. Source: RFC 5321 4.5.4.2; RFC 8314 7.3."""
        return 465 if self is TlsMode.IMPLICIT else 25


class OldestTls(StrEnum):
    """The oldest version of TLS that a connection may have. Source: RFC 8996."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


class Protocol(StrEnum):
    """The protocol of the next hop. Source: RFC 5321; RFC 2033."""

    SMTP = "smtp"
    LMTP = "lmtp"


@dataclass(frozen=True, slots=True)
class HopLogin:
    folder: Path
    """Has the files `username` and `password`, which are read for each connection."""

    mechanism: Mechanism | None = None
    """None: the best one that the next hop offers, except XOAUTH2."""

    is_sent_unverified: bool = False
    """True if it is also sent in clear, or to a server whose certificate was not verified."""

    def fits(self, tls: TlsMode) -> bool:
        """True if it can be sent over connections of this mode at all."""
        return tls.is_verified or self.is_sent_unverified


@dataclass(frozen=True, slots=True)
class SourceAddresses:
    """Addresses that a next hop sees of this side."""

    addresses: tuple[str, ...]
    """Addresses of this machine, one of a family at most; a server with addresses of other families
    alone is not connected to."""

    ehlo_name: str | None = None
    """The name in EHLO; None: that of the process."""

    weight: int = 1
    """Part of the mail that goes from here, beside `others`."""

    others: tuple[SourceAddresses, ...] = ()
    """The rest of a pool, of which each mail goes from one."""

    def for_mail(self, mail_id: UUID) -> SourceAddresses:
        """Return the one of the pool that a mail goes from: always the same, so that a grey list
        sees its sender again."""
        pool = (self, *self.others)
        digest = sha256(mail_id.bytes).digest()
        number = int.from_bytes(digest[:8], "big") % sum(each.weight for each in pool)
        ends = accumulate(each.weight for each in pool)
        chosen = next(each for each, end in zip(pool, ends, strict=True) if number < end)
        return SourceAddresses(chosen.addresses, chosen.ehlo_name)

    def address_for(self, destination: str) -> str | None:
        """Return the address of the destination's family, None where there is none."""
        is_ipv6 = ":" in destination
        return next((each for each in self.addresses if (":" in each) is is_ipv6), None)


@dataclass(frozen=True, slots=True)
class HopTimeouts:
    """Time that a next hop may take to accept a connection, to greet, to reply to a command and to
    the end of a mail. None: the usual time."""

    connect: timedelta | None = None
    greeting: timedelta | None = None
    command: timedelta | None = None
    data_end: timedelta | None = None


@dataclass(frozen=True, slots=True)
class NextHop:
    """A server that mail is handed to."""

    host: str
    port: int = 25
    tls: TlsMode = TlsMode.OPPORTUNISTIC
    protocol: Protocol = Protocol.SMTP
    login: HopLogin | None = None
    oldest_tls: OldestTls = OldestTls.TLS_1_2
    source: SourceAddresses | None = None
    """None: the system chooses the address."""

    by_tlsa: bool = False
    """True if its certificate is compared with TLSA records (`ResolvedHop.certificates`), not with
    authorities."""

    chunking: bool = True
    """True if content may go by CHUNKING where it is offered. Source: RFC 3030."""

    verp: bool = False
    """True if reverse-paths name the recipient. Source: ADR 0071."""

    authorities: Path | None = None
    """The PEM file of its authorities, in place of those for every server."""

    socket: Path | None = None
    """The Unix socket that it listens on, instead of the port."""

    @classmethod
    def at_socket(cls, path: Path) -> NextHop:
        """Return the LMTP server of this machine that listens on a Unix socket. No TLS: what can
        read the socket can read the mail. Raises: InvalidInput."""
        if not path.is_absolute() or "\0" in str(path):
            raise InvalidInput(f"{str(path)!r} is no Unix socket: write the whole path, from / on")
        if len(str(path).encode("utf-8", "surrogateescape")) > MAX_SOCKET:
            raise InvalidInput(
                f"the path of a Unix socket has {MAX_SOCKET} octets at most: move {path}"
            )
        return cls("localhost", 0, TlsMode.NONE, Protocol.LMTP, socket=path)

    def __str__(self) -> str:
        if self.socket is not None:
            return f"{SOCKET_SCHEME}{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_host_port(text: str, default_port: int) -> tuple[str, int]:
    """Read `host`, `host:port`, `[address]:port`. Raises: InvalidInput.

    >>> parse_host_port("[::1]:2525", 25)
    ('::1', 2525)
    """
    host, port = split_host_port(text)
    return host, default_port if port is None else port


def split_host_port(text: str) -> tuple[str, int | None]:
    """Read the same; the port is None where the text has none. Raises: InvalidInput."""
    found = _FORM.fullmatch(text)
    port = int(found["port"]) if found and found["port"] else None
    if found is None or (port is not None and port > 65535):
        raise InvalidInput(f"{text!r} is not a host and port: write host:port or [address]:port")
    return found["literal"] or found["host"], port


def address_literal(address: str) -> str:
    """Return an IP address as SMTP writes it where a name is expected. Source: RFC 5321 4.1.3."""
    return f"[IPv6:{address.partition('%')[0]}]" if ":" in address else f"[{address}]"
