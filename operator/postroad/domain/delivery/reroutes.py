"""Mail that goes another way for a time, because an administrator wants it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from postroad.domain.smtp.next_hops import NextHop, TlsMode, parse_host_port
from postroad.domain.values.instants import rfc3339
from postroad.errors import InvalidInput

RULE_NAME_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9_.]*$"
"""Of a rule of routing."""

MOST_REROUTES = 1000
"""At a time, since each worker reads all of them every five seconds."""


class RerouteOf(StrEnum):
    """Whose mail is rerouted. The values are stored."""

    SITE = "site"
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True)
class Reroute:
    """The mail for a site or a domain goes by `hop`, or as the rule of routing named `rule` has it.
    A domain is written in A-labels."""

    of: RerouteOf
    name: str
    until: datetime
    reason: str
    rule: str | None = None
    hop: NextHop | None = None

    @property
    def key(self) -> str:
        """The name of its note."""
        return key_of(self.of, self.name)

    @property
    def way(self) -> str:
        """The way, as people read it."""
        return f"rule {self.rule}" if self.hop is None else f"{self.hop} (tls {self.hop.tls})"

    def text(self) -> str:
        """Return the form in which it is posted."""
        hop = self.hop
        way = {"rule": self.rule} if hop is None else {"hop": str(hop), "tls": hop.tls}
        about = {"of": self.of, "name": self.name, "until": rfc3339(self.until)}
        return json.dumps({**about, "reason": self.reason, **way})

    @classmethod
    def read(cls, text: str) -> Reroute:
        """Read the posted form. Raises: InvalidInput."""
        try:
            found = json.loads(text)
            rule, hop = found.get("rule"), None
            if rule is None:
                tls = TlsMode(found["tls"])
                hop = NextHop(*parse_host_port(found["hop"], tls.default_port), tls)
            return cls(
                RerouteOf(found["of"]),
                str(found["name"]),
                datetime.fromisoformat(found["until"]).astimezone(UTC),
                str(found["reason"]),
                None if rule is None else str(rule),
                hop,
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidInput("a reroute cannot be read") from error


def key_of(of: RerouteOf, name: str) -> str:
    """Return the name of the note that reroutes a site or a domain."""
    return f"{of} {name}"


def is_rule_name(text: str) -> bool:
    """Whether a way is written as the name of a rule; a host is written with its port.

    >>> is_rule_name("smart-host.2"), is_rule_name("relay.example.org:25")
    (True, False)
    """
    return re.fullmatch(RULE_NAME_PATTERN, text) is not None


@dataclass(frozen=True, slots=True)
class RerouteTable:
    """The reroutes that hold at one instant."""

    by_key: Mapping[str, Reroute] = field(default_factory=dict)

    @classmethod
    def of(cls, reroutes: Iterable[Reroute]) -> RerouteTable:
        """Return the table of these."""
        return cls({each.key: each for each in reroutes})

    @property
    def is_empty(self) -> bool:
        """Whether all mail goes its own way."""
        return not self.by_key

    def of_domain(self, domain: str) -> Reroute | None:
        """Return the reroute of a domain in A-labels and lower case."""
        return self.by_key.get(key_of(RerouteOf.DOMAIN, domain))

    def of_site(self, site: str) -> Reroute | None:
        """Return the reroute of a site."""
        return self.by_key.get(key_of(RerouteOf.SITE, site))


def reroutes_in(notes: Mapping[str, str], now: datetime) -> list[Reroute]:
    """Return the reroutes that hold now, without those that this release cannot read."""
    found = []
    for text in notes.values():
        with suppress(InvalidInput):
            read = Reroute.read(text)
            if read.until > now:
                found.append(read)
    return found
