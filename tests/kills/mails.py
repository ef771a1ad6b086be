"""The mails of a run, and what their addresses let the sites answer. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

Key = tuple[str, str]
"""Sender and recipient. Each mail has a sender of its own; that of a report is empty."""

MAX_RECIPIENTS = 100
REFUSED, REFUSED_AT_END = "no", "end"
"""How the address begins of a recipient that is refused for good; of the sender of a mail for one
recipient that is refused for good at the end of its content."""

LATER, LATER_AT_END = "late", "slow"
"""The same, of what is refused once, and taken then."""

AT_ONCE = ("m", "yes")
"""The same, of sender and recipient, of what is taken at once."""


@dataclass(frozen=True)
class PlannedMail:
    """One mail of a run."""

    sender: str
    recipients: tuple[str, ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple((self.sender, each) for each in self.recipients)


def domain_of_site(number: int) -> str:
    """Return the domain whose mail goes to a site."""
    return f"site{number}.example"


def is_refused(key: Key) -> bool:
    """Whether the sites refuse a recipient of a mail for good."""
    sender, recipient = key
    return sender.startswith(REFUSED_AT_END) or recipient.startswith(REFUSED)


def draw_mails(draw: random.Random, mails: int, sites: int) -> Iterator[PlannedMail]:
    """Yield mails of 1 to 100 recipients, few of them more often than many, at sites drawn. Of a
    hundred recipients one is refused, and one is refused at first; senders have a site, too."""
    for number in range(mails):
        count = int((MAX_RECIPIENTS + 1) ** draw.random())
        fate = _sender_fate(draw, count)
        sender = f"{fate}{number}@{domain_of_site(draw.randrange(sites))}"
        recipients = tuple(
            f"{_recipient_fate(draw)}{number}x{each}@{domain_of_site(draw.randrange(sites))}"
            for each in range(count)
        )
        yield PlannedMail(sender, recipients)


def _sender_fate(draw: random.Random, recipients: int) -> str:
    if recipients == 1 and draw.random() < 0.1:
        return REFUSED_AT_END
    return LATER_AT_END if draw.random() < 0.02 else AT_ONCE[0]


def _recipient_fate(draw: random.Random) -> str:
    number = draw.random()
    return REFUSED if number < 0.01 else LATER if number < 0.02 else AT_ONCE[1]
