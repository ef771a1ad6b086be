"""Limits by rate: how much may go in a minute, evenly. Pure: the clock is passed in.

It is GCRA, the generic cell rate algorithm: each limit has one number, the instant at which the
next mail is due. A mail may come earlier than that by as much as the burst allows; each one moves
the instant by the time between two.

Keys of a mail for limits by rate. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from postroad.domain.values.domain_patterns import DomainPatterns
from postroad.errors import InvalidSettings

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Rate:
    """So many mails a minute, of which `burst` may go at once."""

    per_minute: float
    burst: int = 1

    def __post_init__(self) -> None:
        if self.per_minute <= 0 or self.burst < 1:
            raise InvalidSettings("a limit is above zero a minute, and its burst at least 1")

    def shared_by(self, processes: int) -> Rate:
        """Return the part of one of several processes."""
        return Rate(self.per_minute / processes, max(1, self.burst // processes))

    @property
    def interval(self) -> float:
        """Seconds between two mails."""
        return MINUTE / self.per_minute


class Paces:
    """When the next mail of each limit is due. `slack`: seconds by which it may be early, because
    the caller asks no more often; `most`: limits that are remembered, None: all until they are
    forgotten. Instants are seconds on a clock that never goes back."""

    def __init__(self, slack: float, most: int | None = None) -> None:
        self._slack, self._most = slack, most
        self._due: dict[str, float] = {}

    def wait(self, name: str, rate: Rate, now: float) -> float:
        """Return in how many seconds a mail may go; 0 or less: now."""
        early = (rate.burst - 1) * rate.interval + self._slack
        return self._due.get(name, now) - early - now

    def take(self, name: str, rate: Rate, now: float) -> None:
        """Count a mail that goes."""
        if self._most is not None and name not in self._due and len(self._due) >= self._most:
            self.forget(now)
            while len(self._due) >= self._most:
                del self._due[next(iter(self._due))]
        self._due[name] = max(self._due.get(name, now), now) + rate.interval

    def give_back(self, name: str, rate: Rate) -> None:
        """Count a mail not that was counted and did not go."""
        if name in self._due:
            self._due[name] -= rate.interval

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Forget all other limits: it is as if no mail had gone under them."""
        self._due = {name: due for name, due in self._due.items() if is_kept(name)}

    def forget(self, now: float) -> None:
        """Forget what is not due any more: it is as if no mail had gone."""
        self._due = {name: due for name, due in self._due.items() if due > now}


class LimitedBy(StrEnum):
    RULE = "rule"
    """All mail that the rule matches."""
    SITE = "site"
    TENANT = "tenant"
    SOURCE = "source"
    """The address from which connections come."""


@dataclass(frozen=True, slots=True)
class LimitedMail:
    """Key that decides the limits of a job."""

    site: str
    domains: frozenset[str]
    tenant: str | None
    source: str
    servers: tuple[str, ...] = ()
    """Hosts that are tried first."""


@dataclass(frozen=True, slots=True)
class LimitRule:
    """`per_minute` mails, `burst` of them at once, of those that match: mail to one of `domains`
    (None: to all), of one of `tenants` (None: of all), by one of `servers` (None: by any)."""

    name: str
    by: LimitedBy
    per_minute: float
    burst: int
    domains: frozenset[str] | None = None
    tenants: frozenset[str] | None = None
    servers: DomainPatterns | None = None

    def key(self, mail: LimitedMail) -> str | None:
        """Return the name of the limit that a mail is under; None: under none of this rule."""
        if self.domains is not None and self.domains.isdisjoint(mail.domains):
            return None
        if self.tenants is not None and mail.tenant not in self.tenants:
            return None
        if self.servers is not None and not any(map(self.servers.match, mail.servers)):
            return None
        of = {
            LimitedBy.RULE: "",
            LimitedBy.SITE: mail.site,
            LimitedBy.TENANT: mail.tenant or "",
            LimitedBy.SOURCE: mail.source,
        }
        return f"{self.name} {of[self.by]}".rstrip()


def limits_of(mail: LimitedMail, rules: Iterable[LimitRule]) -> tuple[tuple[str, LimitRule], ...]:
    return tuple((key, rule) for rule in rules if (key := rule.key(mail)) is not None)
