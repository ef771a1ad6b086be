"""The routing plan: all that an administrator decides about routing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from postroad.domain.values.networks import LOOPBACK, NO_ADDRESS, Networks
from postroad.routing.answers import RecordType
from postroad.routing.securing import USUAL_SECURITY, MxSecurity
from postroad.routing.tables import RoutingTable

Pick = Callable[[int], int]
"""Chance: returns a number from 0 to one less than what it is given."""


class AddressFamily(StrEnum):
    """A family of addresses."""

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
    """What this server is known by, so that it finds itself among the servers of a domain."""

    hosts: frozenset[str] = frozenset()
    networks: Networks = NO_ADDRESS

    def has_address(self, address: str) -> bool:
        """Whether a connection to the address reaches this server, as far as it can know."""
        own = (self.networks, LOOPBACK, UNSPECIFIED)
        return any(each.may_be_reached_by(address) for each in own)


@dataclass(frozen=True, slots=True)
class RoutingPlan:
    """All that decides about routes but DNS and chance.

    `families`: which addresses are used, the preferred family first. `skipped`: networks that MX
    records lead to in vain. `postmaster_domain`: where the bare `postmaster` is. `security`: of
    mail that no rule is about.
    """

    table: RoutingTable
    own: OwnNames = OwnNames()
    skipped: Networks = NO_ADDRESS
    families: tuple[AddressFamily, ...] = (AddressFamily.IPV4, AddressFamily.IPV6)
    postmaster_domain: str | None = None
    security: MxSecurity = USUAL_SECURITY

    def may_reach(self, address: str) -> bool:
        """Whether a connection that a stranger's records lead to may go to an address."""
        return not (
            self.own.has_address(address)
            or NOT_UNICAST.may_be_reached_by(address)
            or self.skipped.may_be_reached_by(address)
        )
