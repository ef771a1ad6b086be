"""Which mail is under which limit by rate. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class LimitedBy(StrEnum):
    """What each has a limit of its own."""

    RULE = "rule"
    """All mail that the rule matches."""
    SITE = "site"
    TENANT = "tenant"
    SOURCE = "source"
    """The address from which connections come."""


@dataclass(frozen=True, slots=True)
class LimitedMail:
    """What decides about the limits of a job."""

    site: str
    domains: frozenset[str]
    tenant: str | None
    source: str


@dataclass(frozen=True, slots=True)
class LimitRule:
    """`per_minute` mails, `burst` of them at once, of those that match: mail to one of `domains`
    (None: to all), of one of `tenants` (None: of all)."""

    name: str
    by: LimitedBy
    per_minute: float
    burst: int
    domains: frozenset[str] | None = None
    tenants: frozenset[str] | None = None

    def key(self, mail: LimitedMail) -> str | None:
        """Return the name of the limit that a mail is under; None: under none of this rule."""
        if self.domains is not None and self.domains.isdisjoint(mail.domains):
            return None
        if self.tenants is not None and mail.tenant not in self.tenants:
            return None
        of = {
            LimitedBy.RULE: "",
            LimitedBy.SITE: mail.site,
            LimitedBy.TENANT: mail.tenant or "",
            LimitedBy.SOURCE: mail.source,
        }
        return f"{self.name} {of[self.by]}".rstrip()


def limits_of(mail: LimitedMail, rules: Iterable[LimitRule]) -> tuple[tuple[str, LimitRule], ...]:
    """Return the limits that a mail is under, with their names."""
    return tuple((key, rule) for rule in rules if (key := rule.key(mail)) is not None)
