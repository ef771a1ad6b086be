"""Mail exchangers: which hosts the MX records of a domain name, and in which order.

Source: RFC 5321 5.1; RFC 7505; RFC 2181 10.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from postroad.routing.answers import MxRecord

_HOST = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")


Tiers = tuple[tuple[int, tuple[str, ...]], ...]
"""Each preference, the lowest first, with its hosts in alphabetical order."""


class Exchangers(NamedTuple):
    """The hosts of a domain, and those that cannot be used, with the reason of each."""

    tiers: Tiers
    dropped: tuple[tuple[str, str], ...]


def is_null(records: Sequence[MxRecord]) -> bool:
    """Whether the MX records say that the domain accepts no mail. Source: RFC 7505 3."""
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
    """Whether a text is an IP address and not a name."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_host_name(text: str) -> bool:
    """Whether a text can be the name of a host; labels may have underscores."""
    return len(text) <= 253 and _HOST.fullmatch(text) is not None


def _why_unusable(host: str) -> str:
    if not host:
        return "a null MX beside other MX records means nothing (RFC 7505 3)"
    if is_address(host):
        return "an MX record names a host, not an address (RFC 1035 3.3.9)"
    if not is_host_name(host):
        return "this is not the name of a host"
    return ""
