"""Patterns of domains, and of names of servers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address


@dataclass(frozen=True, slots=True)
class DomainPatterns:
    """Domains, and parents of domains: `example.org` is that domain alone, `*.example.org` every
    domain below it, `*` every domain. An address literal is written as in the address."""

    names: frozenset[str] = frozenset()
    parents: frozenset[str] = frozenset()
    """The empty name is the parent of every domain."""

    @classmethod
    def of(cls, patterns: Iterable[str]) -> DomainPatterns:
        """Read patterns in A-labels and lower case."""
        listed = tuple(patterns)
        return cls(
            frozenset(each for each in listed if not each.startswith("*")),
            frozenset(
                each.removeprefix("*").removeprefix(".") for each in listed if each[0] == "*"
            ),
        )

    def match(self, domain: str) -> str | None:
        """Return the pattern that a domain matches, the longest one; None for none."""
        if domain in self.names:
            return domain
        parent = next((each for each in parents_of(domain) if each in self.parents), None)
        return None if parent is None else f"*.{parent}".removesuffix(".")

    def cover(self, others: DomainPatterns) -> bool:
        """True if each domain that the others match is matched."""
        return all(self.match(name) is not None for name in others.names) and all(
            parent in self.parents or any(each in self.parents for each in parents_of(parent))
            for parent in others.parents
        )


def server_name(host: str) -> str:
    """Return a name or address of a server in the form that patterns match."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.rstrip(".").lower()


def parents_of(domain: str) -> Iterable[str]:
    """Yield the names above a domain, the nearest first, the root (empty) last."""
    if domain.startswith("["):
        yield ""
        return
    parent = domain
    while parent:
        parent = parent.partition(".")[2]
        yield parent
