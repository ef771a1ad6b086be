"""Whose mail is signed, and with what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroad.signing.canonical import Canonical

if TYPE_CHECKING:  # the operator reads rules, and has no use for the library of keys (10 MB)
    from postroad.signing.keys import SigningKey


@dataclass(frozen=True, slots=True)
class SelectedKey:
    """A key, and the selector under which its public half is in DNS."""

    selector: str
    key: SigningKey


@dataclass(frozen=True, slots=True)
class SigningRule:
    """Mail of authors in `domain` is signed for that domain, once with each key.

    `tenants`: of these alone; None: of all. `covers_subdomains`: that of authors in domains below
    it too.
    """

    domain: str
    keys: tuple[SelectedKey, ...]
    tenants: frozenset[str] | None = None
    covers_subdomains: bool = False
    header_form: Canonical = Canonical.RELAXED
    body_form: Canonical = Canonical.RELAXED

    def allows(self, tenant: str | None) -> bool:
        """Whether mail of this tenant is signed."""
        return self.tenants is None or tenant in self.tenants


@dataclass(frozen=True, slots=True)
class SigningPlan:
    """All rules. Of those for one domain, the first that allows the tenant decides; of domains, the
    nearest."""

    rules: tuple[SigningRule, ...] = ()
    _by_domain: Mapping[str, list[SigningRule]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_domain: dict[str, list[SigningRule]] = {}
        for rule in self.rules:
            by_domain.setdefault(rule.domain, []).append(rule)
        object.__setattr__(self, "_by_domain", by_domain)

    def find(self, domain: str, tenant: str | None) -> SigningRule | None:
        """Return the rule for mail of an author in this domain, in A-labels and lower case; None:
        it is not signed."""
        for name in _and_above(domain):
            for rule in self._by_domain.get(name, ()):
                if (rule.covers_subdomains or name == domain) and rule.allows(tenant):
                    return rule
        return None


def _and_above(domain: str) -> Iterable[str]:
    while domain:
        yield domain
        domain = domain.partition(".")[2]
