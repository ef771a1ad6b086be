"""How connections to the servers of a domain are secured: what an administrator requires, raised by
what the domain publishes and never lowered.

Source: RFC 8461 (MTA-STS); RFC 7672 (DANE); ADR 0058.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from postroad.domain.smtp.next_hops import NextHop, OldestTls, SourceAddresses, TlsMode
from postroad.routing.answers import Answer, AnswerKind, TlsaRecord
from postroad.routing.sts import DomainPolicy, StsMode


class PublishedSecurity(StrEnum):
    """What a domain publishes about TLS to its servers: a policy of MTA-STS, TLSA records."""

    STS = "sts"
    DANE = "dane"


@dataclass(frozen=True, slots=True)
class MxSecurity:
    """What is required of connections to servers that MX records name, where they come from,
    whether content may go by CHUNKING, and whether reverse-paths name the recipient."""

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
    neither requires, the mode of the next hop does.

    `tlsa`: names and what DNS has of the certificates under them, the name that counts most first;
    none for a server whose addresses are not validated.
    """
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
