"""Questions to DNS and their answers, as routing reads them.

Names are absolute, in A-labels, in lower case, without the final dot; the root is the empty name.
Source: RFC 1034 3.1; RFC 5891 4.4.

Mail exchangers: which hosts the MX records of a domain name, and in which order.

Source: RFC 5321 5.1; RFC 7505; RFC 2181 10.3."""

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum, StrEnum
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

T = TypeVar("T")

DNS_PORT = 53

NOT_KEPT = timedelta(0)
"""The time to live of an answer that is used once."""


class RecordType(StrEnum):
    MX = "MX"
    A = "A"
    AAAA = "AAAA"
    TXT = "TXT"
    TLSA = "TLSA"


@dataclass(frozen=True, slots=True)
class Question:
    """One name and one type of record."""

    name: str
    type: RecordType

    def __str__(self) -> str:
        return f"{self.name} {self.type}"


class AnswerKind(StrEnum):
    """Kind of an answer. NO_NAME: the name does not exist (NXDOMAIN). NO_DATA: it has no record of
    this type. UNAVAILABLE: nothing is known, because no server gave a usable answer.
    Source: RFC 2308 1, 2; RFC 8020 for names below."""

    RECORDS = "records"
    NO_NAME = "no such name"
    NO_DATA = "no such record"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class MxRecord:
    """One MX record; the lower preference is tried first. `host` is empty in a null MX.
    Source: RFC 5321 5.1; RFC 7505 3."""

    preference: int
    host: str


class TlsaUsage(IntEnum):
    """Usage that a TLSA record is about, as far as mail uses it: an authority, or the server's own
    certificate. Source: RFC 7672 3.1."""

    DANE_TA = 2
    DANE_EE = 3


class TlsaSelector(IntEnum):
    """Of what a TLSA record has the octets. Source: RFC 6698 2.1.2."""

    CERTIFICATE = 0
    PUBLIC_KEY = 1


class TlsaMatching(IntEnum):
    """In which form. Source: RFC 6698 2.1.3."""

    OCTETS = 0
    SHA_256 = 1
    SHA_512 = 2


_LENGTHS = {TlsaMatching.SHA_256: 32, TlsaMatching.SHA_512: 64}


@dataclass(frozen=True, slots=True)
class TlsaRecord:
    usage: int
    selector: int
    matching: int
    data: bytes

    @property
    def is_usable(self) -> bool:
        """True if a certificate can be compared with it. Source: RFC 7672 3.1.3; RFC 7671 10.3."""
        return (
            self.usage in set(TlsaUsage)
            and self.selector in set(TlsaSelector)
            and self.matching in set(TlsaMatching)
            and len(self.data) == _LENGTHS.get(TlsaMatching(self.matching), len(self.data) or -1)
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """Facts about a question, and for how long (`ttl`, from now)."""

    kind: AnswerKind
    ttl: timedelta
    exchanges: tuple[MxRecord, ...] = ()
    addresses: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    """The names that CNAME records led to, in order."""

    reason: str = ""
    """Why no server gave a usable answer."""

    texts: tuple[str, ...] = ()
    """TXT records, the strings of each joined."""

    certificates: tuple[TlsaRecord, ...] = ()

    is_validated: bool = False
    """True if a name server on this machine calls all of the answer authentic by DNSSEC.
    Source: RFC 6840 5.8; RFC 7672 2.2."""

    @property
    def is_unavailable(self) -> bool:
        """True if a later answer may be another one, so that no mail fails by this one."""
        return self.kind is AnswerKind.UNAVAILABLE


Asking = Generator[tuple[Question, ...], tuple[Answer, ...], T]
"""A computation that yields questions, gets their answers in the same order, and returns."""


_HOST = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")


Tiers = tuple[tuple[int, tuple[str, ...]], ...]
"""Each preference, the lowest first, with its hosts in alphabetical order."""


class Exchangers(NamedTuple):
    """The hosts of a domain, and those that cannot be used, with the reason of each."""

    tiers: Tiers
    dropped: tuple[tuple[str, str], ...]


def is_null(records: Sequence[MxRecord]) -> bool:
    """True if the MX records say that the domain accepts no mail. Source: RFC 7505 3."""
    return bool(records) and all(not record.host for record in records)


def exchangers(records: Iterable[MxRecord]) -> Exchangers:
    """Return the hosts of MX records; a host that is named twice has the lower preference.

    A null MX beside others means nothing (RFC 7505 3), and an address is no host name (RFC 1035
    3.3.9).

    >>> exchangers([MxRecord(20, "b.example"), MxRecord(10, "a.example")]).tiers
    ((10, ('a.example',)), (20, ('b.example',)))
    """
    preferences: dict[str, int] = {}
    dropped: dict[str, str] = {}
    for record in records:
        if reason := _why_unusable(record.host):
            dropped[record.host or "."] = reason
        else:
            lowest = preferences.get(record.host, record.preference)
            preferences[record.host] = min(lowest, record.preference)
    tiers: dict[int, list[str]] = {}
    for host, preference in preferences.items():
        tiers.setdefault(preference, []).append(host)
    ordered = tuple((each, tuple(sorted(tiers[each]))) for each in sorted(tiers))
    return Exchangers(ordered, tuple(dropped.items()))


def is_address(text: str) -> bool:
    """True if a text is an IP address and not a name."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_host_name(text: str) -> bool:
    """True if a text can be the name of a host; labels may have underscores."""
    return len(text) <= 253 and _HOST.fullmatch(text) is not None


def _why_unusable(host: str) -> str:
    if not host:
        return "a null MX beside other MX records means nothing (RFC 7505 3)"
    if is_address(host):
        return "an MX record names a host, not an address (RFC 1035 3.3.9)"
    if not is_host_name(host):
        return "this is not the name of a host"
    return ""
