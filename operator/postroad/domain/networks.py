"""Networks of clients, and whether an address lies in one of them.

A socket for both families shows an IPv4 client as an IPv4-mapped IPv6 address: it is compared as
the IPv4 address that it is, and networks are only written in their own family.
Source: RFC 4632 3.1 and RFC 4291 2.3 (prefixes); RFC 4291 2.5.5.2 (mapped addresses).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from postroad.errors import InvalidInput

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_FORM = re.compile(r"[0-9A-Fa-f.:]+(?:/[0-9]{1,3})?")
"""No netmask: `/0.0.0.255` is one to some programs and the inverse of one to others. No zone."""

_MAPPED_BITS = 96

_EVERY_IPV4 = ipaddress.IPv4Network("0.0.0.0/0")
_EVERY_IPV6 = ipaddress.IPv6Network("2000::/3")
"""All global unicast addresses that are assigned. Source: RFC 4291 2.4, IANA."""


@dataclass(frozen=True, slots=True)
class Networks:
    """A set of networks, empty by default."""

    each: tuple[Network, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> Networks:
        """Read networks such as `10.0.0.0/8` and `2001:db8::/32`; an address is a network of one.
        Raises: InvalidInput."""
        return cls(tuple(map(_network, texts)))

    @classmethod
    def parse(cls, text: str) -> Networks:
        """Read a list with commas. Raises: InvalidInput."""
        return cls.of(part.strip() for part in text.split(","))

    def __contains__(self, address: str) -> bool:
        """Whether an address lies in one of them. What is no address lies in none."""
        client = _client(address) if self.each else None
        return client is not None and any(client in network for network in self.each)

    def __str__(self) -> str:
        return ", ".join(map(str, self.each)) or "none"

    @property
    def hold_the_internet(self) -> bool:
        """Whether every public address of IPv4, or of IPv6, lies in them, in one or in several
        together."""
        ipv4 = [each for each in self.each if isinstance(each, ipaddress.IPv4Network)]
        ipv6 = [each for each in self.each if isinstance(each, ipaddress.IPv6Network)]
        return any(
            _EVERY_IPV4.subnet_of(each) for each in ipaddress.collapse_addresses(ipv4)
        ) or any(_EVERY_IPV6.subnet_of(each) for each in ipaddress.collapse_addresses(ipv6))


@lru_cache(maxsize=4096)  # a client, or a host of many recipients, is compared with several lists
def _client(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that is compared; None for what is none."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _network(text: str) -> Network:
    advice = "write one as 10.0.0.0/8 or 2001:db8::/32"
    if not _FORM.fullmatch(text):
        raise InvalidInput(f"{text!r} is no network: {advice}")
    try:
        found = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidInput(f"{text!r} is no network: {advice}") from None
    mapped = getattr(found.network_address, "ipv4_mapped", None)
    if mapped is not None and found.prefixlen >= _MAPPED_BITS:
        ipv4 = ipaddress.ip_network((mapped, found.prefixlen - _MAPPED_BITS), strict=False)
        raise InvalidInput(f"{text!r} is IPv4 written as IPv6: write {ipv4}")
    if found.network_address != ipaddress.ip_address(text.partition("/")[0]):
        raise InvalidInput(f"{text!r} has bits beyond its prefix: write {found}")
    return found


NO_ADDRESS = Networks()
LOOPBACK = Networks.of(("127.0.0.0/8", "::1"))
EVERY_ADDRESS = Networks.of(("0.0.0.0/0", "::/0"))
