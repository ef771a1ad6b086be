"""Security of connections to the servers of a domain: what an administrator requires, raised by
what the domain publishes and never lowered.

Source: RFC 8461 (MTA-STS); RFC 7672 (DANE); ADR 0058.

MTA-STS: the policy by which a domain requires TLS of those who send to it.

Source: RFC 8461."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from postroad.domain.smtp.next_hops import NextHop, OldestTls, SourceAddresses, TlsMode
from postroad.errors import InvalidInput
from postroad.routing.answers import Answer, AnswerKind, TlsaRecord

MAX_AGE = timedelta(seconds=31_557_600)
"""Source: RFC 8461 3.2."""

MIN_AGE = timedelta(minutes=5)
"""A policy holds at least so long, else a domain could have itself asked for every mail. Source:
RFC 8461 3.3."""

REFRESH = timedelta(days=1)
"""Age that a policy gets before it is fetched again, though its record has not changed, so that it
does not end while it is in use. Source: RFC 8461 3.3."""

_RECORD = re.compile(
    r"v=STSv1[ \t]*;[ \t]*id=([A-Za-z0-9]{1,32})[ \t]*"
    r"(?:;[ \t]*[A-Za-z0-9][\w.-]{0,31}=[^;=]*)*;?[ \t]*"
)
_PATTERN = re.compile(r"(?:\*\.)?(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?")
_FIELD = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,31})[ \t]*:[ \t]*(.*?)[ \t]*")


class StsMode(StrEnum):
    """Mode of a policy. `testing`: nothing but reports, which are not sent yet."""

    ENFORCE = "enforce"
    TESTING = "testing"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class StsPolicy:
    """A policy, without its time."""

    mode: StsMode
    exchangers: tuple[str, ...]
    """Hosts, and `*.` with a domain, for one label before it."""

    max_age: timedelta

    @classmethod
    def parse(cls, text: str) -> StsPolicy:
        """Read the file of a policy. Of a field that stands twice the first one counts, except
        `mx`. Raises: InvalidInput. Source: RFC 8461 3.2."""
        fields: dict[str, str] = {}
        exchangers: list[str] = []
        for line in text.replace("\r\n", "\n").split("\n"):
            if not line.strip():
                continue
            found = _FIELD.fullmatch(line)
            if found is None:
                raise InvalidInput("a line of the policy is no field")
            name, value = found[1], found[2]
            if name == "mx":
                exchangers.append(_pattern(value))
            else:
                fields.setdefault(name, value)
        if fields.get("version") != "STSv1":
            raise InvalidInput("the policy has no version STSv1")
        mode = _mode(fields)
        if mode is not StsMode.NONE and not exchangers:
            raise InvalidInput("the policy names no mx")
        return cls(mode, tuple(exchangers), _age(fields))

    def permits(self, host: str) -> bool:
        """True if a host may get the domain's mail. Source: RFC 8461 4.1."""
        _, _, parent = host.partition(".")
        return host in self.exchangers or f"*.{parent}" in self.exchangers


@dataclass(frozen=True, slots=True)
class KeptPolicy:
    """A policy that was fetched: the id of its record at that time, and when that was."""

    id: str
    policy: StsPolicy
    fetched_at: datetime

    def is_over(self, now: datetime) -> bool:
        """True if it counts no more, as one from the future, by a clock that was wrong."""
        return not (self.fetched_at - REFRESH <= now < self.fetched_at + self.policy.max_age)

    def is_to_be_fetched(self, record: str | None, now: datetime) -> bool:
        """True if a newer one is to be looked for. `record`: the id in DNS now, if there is one."""
        age = now - self.fetched_at
        is_old = age >= min(REFRESH, self.policy.max_age / 2)
        return record is not None and (record != self.id or is_old)


@dataclass(frozen=True, slots=True)
class DomainPolicy:
    """Facts of a domain: the policy that holds for its mail, if any, and why."""

    policy: StsPolicy | None
    words: str


def record_id(texts: Iterable[str]) -> str | None:
    """Return the id of the record among the texts of `_mta-sts`; None where there is none, more
    than one, or a malformed one, so that no policy is looked for. Source: RFC 8461 3.1.

    >>> record_id(["v=STSv1; id=20160831085700Z;", "v=spf1 -all"])
    '20160831085700Z'
    """
    records = [each for each in texts if each.startswith("v=STSv1;")]
    if len(records) != 1:
        return None
    found = _RECORD.fullmatch(records[0])
    return None if found is None else found[1]


def _pattern(text: str) -> str:
    name = text.lower()
    if not _PATTERN.fullmatch(name):
        raise InvalidInput("an mx of the policy is no name of a host")
    return name.removesuffix(".")


def _mode(fields: Mapping[str, str]) -> StsMode:
    try:
        return StsMode(fields.get("mode", ""))
    except ValueError:
        raise InvalidInput("the policy has no known mode") from None


def _age(fields: Mapping[str, str]) -> timedelta:
    text = fields.get("max_age", "")
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise InvalidInput("the policy has no max_age")
    return max(MIN_AGE, min(timedelta(seconds=int(text)), MAX_AGE))


class PublishedSecurity(StrEnum):
    """Records of a domain about TLS to its servers: a policy of MTA-STS, TLSA records."""

    STS = "sts"
    DANE = "dane"


@dataclass(frozen=True, slots=True)
class MxSecurity:
    """Security that is required of connections to servers that MX records name, where they come
    from, whether content may go by CHUNKING, and whether reverse-paths name the recipient."""

    tls: TlsMode = TlsMode.OPPORTUNISTIC
    honoured: frozenset[PublishedSecurity] = frozenset()
    oldest_tls: OldestTls = OldestTls.TLS_1_2
    source: SourceAddresses | None = None
    chunking: bool = True
    verp: bool = False


USUAL_SECURITY = MxSecurity()


class TlsaRecords(NamedTuple):
    """The usable TLSA records of a server, and the name under which they are: that of its
    certificate, where that counts. Source: RFC 7672 2.2.3, 3.2.2."""

    name: str
    records: tuple[TlsaRecord, ...]


class SecuredHop(NamedTuple):
    """A next hop with what its certificate has to match; or why no mail goes to it now."""

    hop: NextHop
    tlsa: TlsaRecords | None = None
    refusal: str = ""
    words: str = ""


def secured(
    hop: NextHop, sts: DomainPolicy | None, tlsa: Sequence[tuple[str, Answer]] = ()
) -> SecuredHop:
    """Decide how one server is connected to. DANE decides before MTA-STS (RFC 8461 2), and what
    neither requires, the mode of the next hop does. `tlsa`: names and what DNS has of the
    certificates under them, the name that counts most first; none for a server whose addresses are
    not validated."""
    policy = None if sts is None else sts.policy
    is_named, by_sts = policy is None or policy.permits(hop.host), ""
    if policy is not None and policy.mode is StsMode.ENFORCE:
        if not is_named:
            return SecuredHop(hop, refusal="is not in the domain's MTA-STS policy")
        hop, by_sts = _at_least(hop, TlsMode.REQUIRED), "MTA-STS: its certificate is verified"
    elif policy is not None and policy.mode is StsMode.TESTING and not is_named:
        by_sts = "MTA-STS (testing): is not in the domain's policy"
    for name, answer in tlsa:
        if answer.is_unavailable:
            return SecuredHop(hop, refusal=f"no name server answered for its TLSA records ({name})")
        if answer.kind is AnswerKind.RECORDS and answer.is_validated:
            usable = tuple(each for each in answer.certificates if each.is_usable)
            if usable:
                hop = replace(_at_least(hop, TlsMode.REQUIRED), by_tlsa=True)
                return SecuredHop(hop, TlsaRecords(name, usable), words=f"DANE: by {name} TLSA")
            hop = _at_least(hop, TlsMode.ENCRYPTED)
            return SecuredHop(hop, words=f"DANE: no record of {name} TLSA is usable; {by_sts}")
    return SecuredHop(hop, words=by_sts)


_ORDER = (TlsMode.NONE, TlsMode.OPPORTUNISTIC, TlsMode.ENCRYPTED, TlsMode.REQUIRED)


def _at_least(hop: NextHop, least: TlsMode) -> NextHop:
    if hop.tls is TlsMode.IMPLICIT or _ORDER.index(hop.tls) >= _ORDER.index(least):
        return hop
    return replace(hop, tls=least)
