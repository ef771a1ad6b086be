"""What is scheduled: addresses to look up, and recipients to deliver to.

Source: SC-1, SC-2.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from postroad.errors import InvalidInput


class Precedence(IntEnum):
    """Which mails go first where several wait, the least first. Each has share limits of its own.
    Source: SC-26 (verifications)."""

    VERIFICATION = 0
    TRANSACTIONAL = 1
    ORDINARY = 2
    BULK = 3


def precedence_of(mail: str | None, priority: int) -> Precedence:
    """Return the precedence of a mail with this priority; no mail is a verification.

    >>> precedence_of("a newsletter", -10).name
    'BULK'
    """
    if mail is None:
        return Precedence.VERIFICATION
    if priority > 0:
        return Precedence.TRANSACTIONAL
    return Precedence.BULK if priority < 0 else Precedence.ORDINARY


@dataclass(frozen=True, slots=True)
class Site:
    """The destinations that serve the same recipients, most preferred tier first. Jobs with equal
    sites share connections; sites may have destinations in common."""

    tiers: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if not self.tiers or not all(self.tiers):
            raise InvalidInput("a site has a tier, and each tier has a destination")


@dataclass(frozen=True, slots=True)
class RoutingJob:
    """One address to look up. `number` is unique among those that are under way; `mail` is None
    for a verification."""

    number: int
    mail: str | None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class DeliveryJob:
    """Those recipients of one mail that have the same site. `number` is unique among the jobs in
    the scheduler; `mail` is None for a verification. A mail has one priority."""

    number: int
    mail: str | None
    site: Site
    priority: int = 0
