"""Routes: what routing finds for a recipient.

The routing plan: all that an administrator decides about routing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from hashlib import sha256

from postroad.domain.mail.mail import Outcome
from postroad.domain.smtp.next_hops import HopTimeouts, NextHop, OldestTls
from postroad.domain.values.networks import LOOPBACK, NO_ADDRESS, Networks
from postroad.routing.answers import RecordType
from postroad.routing.securing import USUAL_SECURITY, MxSecurity, TlsaRecords
from postroad.routing.tables import RoutingTable

DIGEST_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision on the way to a route: what it was about, and what was decided and why."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class RoutedSite:
    """The next hops that several domains share: connections, limits and health belong to a site.
    Domains whose MX records name the same hosts in the same order of preference are one site,
    whatever the numbers; so are domains that rules send to the same smart hosts."""

    tiers: tuple[tuple[NextHop, ...], ...]

    @classmethod
    def of(cls, tiers: Iterable[Iterable[NextHop]]) -> RoutedSite:
        """Return the site of these next hops, the preferred ones first, in any order in a tier."""
        return cls(tuple(tuple(sorted(set(tier), key=written_hop)) for tier in tiers))

    @property
    def name(self) -> str:
        """The name for people, metrics and commands: the host alone, or the first of the preferred
        hosts, how many more there are, and a digest of all of them."""
        first, *more = (hop for tier in self.tiers for hop in tier)
        if not more and first == NextHop(first.host):
            return first.host
        text = "\n".join(" ".join(map(written_hop, tier)) for tier in self.tiers)
        count = f"+{len(more)}" if more else ""
        return f"{first}{count}.{sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]}"


@dataclass(frozen=True, slots=True)
class ResolvedHop:
    """A next hop with its addresses, in the order in which they are tried."""

    next_hop: NextHop
    addresses: tuple[str, ...]
    certificates: TlsaRecords | None = None
    """Name or record that its certificate has to match, where it is `by_tlsa`."""

    connect_within: timedelta | None = None
    """For how long each address is tried, and half of the time in which it has to greet; None: as
    long as usual. Its name is looked up for as long as usual."""

    timeouts: HopTimeouts | None = None
    """Time that it may take; None: the usual time."""


@dataclass(frozen=True, slots=True)
class Route:
    """The next hops for a recipient, in tiers: those of the first are tried before those of the
    second. Those of one tier are in random order. Valid for `ttl`; None: for as long as the table.
    """

    site: RoutedSite
    tiers: tuple[tuple[ResolvedHop, ...], ...]
    ttl: timedelta | None
    explanations: tuple[Explanation, ...]


@dataclass(frozen=True, slots=True)
class NoRoute:
    """Why there is no next hop for a recipient: failed for good, or deferred."""

    outcome: Outcome
    ttl: timedelta | None
    explanations: tuple[Explanation, ...]


def written_hop(hop: NextHop) -> str:
    """All that makes a next hop another one: mail of other requirements shares no connection."""
    words = [str(hop), hop.protocol, hop.tls]
    if hop.oldest_tls is not OldestTls.TLS_1_2:
        words.append(f"tls{hop.oldest_tls}")
    if not hop.chunking:
        words.append("data")
    if hop.verp:
        words.append("verp")
    if hop.by_tlsa:
        words.append("tlsa")
    if hop.authorities is not None:
        words.append(str(hop.authorities))
    if hop.source is not None:
        words.append(f"from {' '.join(hop.source.addresses)} {hop.source.ehlo_name}")
        words += (f"{each.weight} {' '.join(each.addresses)}" for each in hop.source.others)
    if hop.login is not None:
        words.append(f"{hop.login.folder} {hop.login.mechanism}")
    return "/".join(words)


def host_of(written: str) -> str:
    """Return the host of a next hop that `written_hop` wrote."""
    return written.partition("/")[0].rpartition(":")[0].strip("[]")


Pick = Callable[[int], int]
"""Chance: returns a number from 0 to one less than what it is given."""


class AddressFamily(StrEnum):
    IPV4 = "ipv4"
    IPV6 = "ipv6"

    @property
    def record_type(self) -> RecordType:
        """The type of the records that hold its addresses. Source: RFC 1035 3.4.1; RFC 3596 2.1."""
        return RecordType.A if self is AddressFamily.IPV4 else RecordType.AAAA


UNSPECIFIED = Networks.of(("0.0.0.0/8", "::"))
"""A connection to these reaches this machine. Source: RFC 1122 3.2.1.3; RFC 4291 2.5.2."""

NOT_UNICAST = Networks.of(
    ("224.0.0.0/4", "240.0.0.0/4", "169.254.0.0/16", "ff00::/8", "fe80::/10", "fec0::/10")
)
"""No server of mail has these: multicast, reserved, broadcast; link-local addresses, which mean
nothing beyond one link, and have the metadata of cloud machines behind them; and site-local ones.
Source: RFC 5771; RFC 1112 4; RFC 3927 2.7; RFC 4291 2.5.6, 2.7; RFC 3879."""


@dataclass(frozen=True, slots=True)
class OwnNames:
    """Names that this server is known by, so that it finds itself among the servers of a domain."""

    hosts: frozenset[str] = frozenset()
    networks: Networks = NO_ADDRESS

    def has_address(self, address: str) -> bool:
        """True if a connection to the address reaches this server, as far as it can know."""
        own = (self.networks, LOOPBACK, UNSPECIFIED)
        return any(each.may_be_reached_by(address) for each in own)


@dataclass(frozen=True, slots=True)
class RoutingPlan:
    """All that decides about routes but DNS and chance. `families`: which addresses are used, the
    preferred family first. `skipped`: networks that MX records lead to in vain.
    `postmaster_domain`: where the bare `postmaster` is. `security`: of mail that no rule is
    about."""

    table: RoutingTable
    own: OwnNames = OwnNames()
    skipped: Networks = NO_ADDRESS
    families: tuple[AddressFamily, ...] = (AddressFamily.IPV4, AddressFamily.IPV6)
    postmaster_domain: str | None = None
    security: MxSecurity = USUAL_SECURITY

    def may_reach(self, address: str) -> bool:
        """True if a connection that a stranger's records lead to may go to an address."""
        return not (
            self.own.has_address(address)
            or NOT_UNICAST.may_be_reached_by(address)
            or self.skipped.may_be_reached_by(address)
        )
