"""Routes: what routing finds for a recipient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from postroad.domain.mail.mail import Outcome
from postroad.domain.smtp.next_hops import NextHop, OldestTls
from postroad.routing.securing import TlsaRecords

DIGEST_LETTERS = 8


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision on the way to a route: what it was about, and what was decided and why."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class RoutedSite:
    """The next hops that several domains share: connections, limits and health belong to a site.

    Domains whose MX records name the same hosts in the same order of preference are one site,
    whatever the numbers; so are domains that rules send to the same smart hosts.
    """

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
        return f"{first}{count}.{sha256(text.encode()).hexdigest()[:DIGEST_LETTERS]}"


@dataclass(frozen=True, slots=True)
class ResolvedHop:
    """A next hop with its addresses, in the order in which they are tried."""

    next_hop: NextHop
    addresses: tuple[str, ...]
    certificates: TlsaRecords | None = None
    """What its certificate has to match, where it is `by_tlsa`."""

    connect_within: timedelta | None = None
    """For how long each address is tried, and half of the time in which it has to greet; None: as
    long as usual. Its name is looked up for as long as usual."""


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
    """Return all that makes a next hop another one, so that no connection is shared by mail with
    other requirements."""
    words = [str(hop), hop.protocol, hop.tls]
    if hop.oldest_tls is not OldestTls.TLS_1_2:
        words.append(f"tls{hop.oldest_tls}")
    if not hop.chunking:
        words.append("data")
    if hop.verp:
        words.append("verp")
    if hop.by_tlsa:
        words.append("tlsa")
    if hop.source is not None:
        words.append(f"from {' '.join(hop.source.addresses)} {hop.source.ehlo_name}")
    if hop.login is not None:
        words.append(f"{hop.login.folder} {hop.login.mechanism}")
    return "/".join(words)
