"""Networks, whether a client's address lies in one of them, and whether a connection may end there.

A socket for both families shows an IPv4 client as an IPv4-mapped IPv6 address: it is compared as
the IPv4 address that it is, and networks are only written in their own family. Other forms of IPv6
that hold an IPv4 address lead there by a translator or a tunnel, so a connection to one is compared
by both. Rights are not: a client with a network of its own can choose an address of that form.
Source: RFC 4632 3.1 and RFC 4291 2.3 (prefixes); RFC 4291 2.5.5.2 (mapped addresses)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from postroad.errors import InvalidInput

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_FORM = re.compile(r"[0-9A-Fa-f.:]+(?:/[0-9]{1,3})?")
"""No netmask: `/0.0.0.255` is one to some programs and the inverse of one to others. No zone."""

_MAPPED_BITS = 96


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
        """True if an address lies in one of them. What is no address lies in none."""
        client = _client(address) if self.each else None
        return client is not None and any(client in network for network in self.each)

    def may_be_reached_by(self, address: str) -> bool:
        """True if a connection to an address may end in one of them: it lies there, or an IPv4
        address that it holds does."""
        return bool(self.each) and any(each in self for each in _forms(address))

    def __str__(self) -> str:
        return ", ".join(map(str, self.each)) or "none"

    @property
    def hold_the_internet(self) -> bool:
        """True if every public address of IPv4, or of IPv6, lies in one or several of them."""
        with_reserved = (*self.each, *_RESERVED.each)
        ipv4 = [each for each in with_reserved if isinstance(each, ipaddress.IPv4Network)]
        ipv6 = [each for each in with_reserved if isinstance(each, ipaddress.IPv6Network)]
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


def client_of(address: str) -> str:
    """Return the client that an address belongs to: an IPv4 address, or the /64 of an IPv6 address,
    because one host gets a /64 (RFC 6177). A 6to4 host has 65,536 of these; all that a NAT64
    translates share one, as do IPv4 clients that a proxy names as IPv4-mapped addresses: these
    count by their IPv4 address."""
    if ":" not in address:
        return address
    number = int(ipaddress.IPv6Address(address.partition("%")[0]))
    if number >> 112 == _6TO4 or number >> 32 in (_NAT64, _MAPPED):
        return str(ipaddress.IPv4Address(next(_embedded(number))))
    return str(ipaddress.IPv6Address(number >> 64 << 64))


_6TO4, _TEREDO, _NAT64, _LOCAL_NAT64 = 0x2002, 0x2001_0000, 0x64_FF9B << 64, 0x64_FF9B_0001
_COMPATIBLE, _MAPPED, _TRANSLATED, _ISATAP = 0, 0xFFFF, 0xFFFF_0000, 0x5EFE
_IPV4 = 0xFFFF_FFFF


@lru_cache(maxsize=4096)
def _forms(address: str) -> tuple[str, ...]:
    """Return an address, and the IPv4 addresses that it holds. None of 0.0.0.0/8 is one: `::1` is
    no 0.0.0.1."""
    found = _client(address)
    if not isinstance(found, ipaddress.IPv6Address):
        return (address,)
    held = (ipaddress.IPv4Address(each) for each in _embedded(int(found)) if each >> 24)
    return (address, *map(str, held))


def _embedded(number: int) -> Iterator[int]:
    """Yield the IPv4 addresses in an IPv6 address. Source: RFC 3056 2 (6to4); RFC 4380 4 (Teredo);
    RFC 6052 2.2 and RFC 8215 (NAT64); RFC 4291 2.5.5 and RFC 2765 2.1; RFC 5214 6.1 (ISATAP)."""
    if number >> 112 == _6TO4:
        yield number >> 80 & _IPV4
    if number >> 96 == _TEREDO:
        yield number >> 64 & _IPV4  # the server
        yield number & _IPV4 ^ _IPV4
    if number >> 80 == _LOCAL_NAT64:  # of any length of prefix: what follows the address is zero
        yield number & _IPV4
        if not number & (1 << 40) - 1:
            yield (number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF
        if not number & (1 << 32) - 1:
            yield (number >> 64 & 0xFF) << 24 | number >> 32 & 0xFF_FFFF
        if not number & (1 << 24) - 1:
            yield number >> 24 & _IPV4
    has_isatap = number >> 32 & 0xFDFF_FFFF == _ISATAP  # with and without the bit for global ones
    if has_isatap or number >> 32 in (_COMPATIBLE, _MAPPED, _TRANSLATED, _NAT64):
        yield number & _IPV4


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

_EVERY_IPV4 = ipaddress.IPv4Network("0.0.0.0/0")
_EVERY_IPV6 = ipaddress.IPv6Network("2000::/3")
_RESERVED = Networks.parse(
    "0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, "
    "192.0.0.0/24, 192.0.2.0/24, 192.88.99.0/24, 192.168.0.0/16, 198.18.0.0/15, 198.51.100.0/24, "
    "203.0.113.0/24, 224.0.0.0/3, 2001::/23, 2001:db8::/32, 2002::/16, 2d00::/8, 2e00::/7, 3000::/4"
)
"""Those of 0.0.0.0/0 and 2000::/3 that no client of the Internet has: special, of multicast or not
assigned. Source: RFC 6890 2.2; RFC 1112 4; RFC 4291 2.4."""


def is_loopback(host: str) -> bool:
    """True if a host is this machine alone, by its name or by an address."""
    return host == "localhost" or host in LOOPBACK


SECURED_PATTERN = (
    r"^(https://.*|http://(127(\.(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}|\[::1\]|localhost)"
    r"(:[0-9]+)?([/?].*)?)$"
)
"""In the rules of the CRDs, too, which know no other forms of an address."""

_SECURED = re.compile(SECURED_PATTERN)


def is_secured(url: str) -> bool:
    """True if nothing between reads what is sent to a URL: over HTTPS, or on loopback."""
    return _SECURED.fullmatch(url) is not None


def has_port_in_range(url: str) -> bool:
    """True if a URL has no port, or one from 1 to 65535."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False
