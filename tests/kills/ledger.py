"""What arrived, from kill to kill, and how often each recipient may have the mail. Pure.

A recipient may have it once, and once more for each kill between a transmission and its record: who
arrived since the kill before and waits in the queue all the same was transmitted without a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from kills.mails import Key


class Kind(Enum):
    """What is wrong."""

    LOST = "neither delivered nor reported nor removed"
    REPEATED = "delivered more often than it was transmitted without a record"
    UNRECORDED = "more transmissions of a connection without a record than it may have"
    RETURNED = "delivered after it was removed"
    UNKNOWN = "delivered, but never queued, or refused by its site"
    WRONGLY_REPORTED = "reported, but refused by no site"
    REPORTED_AGAIN = "refused, and reported more than once"
    WAITING = "waits at the end"
    ACCOUNT = "the account differs"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and what it is about."""

    kind: Kind
    about: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.about}"


@dataclass(frozen=True)
class Transmission:
    """A mail as a site accepted it. `name` tells reports to one sender apart; so many transmissions
    of its connection may be without a record as `most_open` has."""

    site: int
    connection: int
    keys: tuple[Key, ...]
    name: str = ""
    most_open: int = 1


class ItemProgress:
    """The arrivals of a run."""

    def __init__(self) -> None:
        self.copies = Counter[tuple[Key, str]]()
        """How often each recipient had each mail."""
        self.allowed = Counter[Key]()
        """How often each may have it beyond the first time."""
        self.transmissions = self.arrivals = self.kills = 0
        self.kills_in_transit = 0
        """Of the kills, those that left a transmission without a record."""
        self.removed = set[str]()
        """The senders of the mails that were removed."""
        self.findings = list[Finding]()
        self._since_kill = list[Transmission]()
        self._removed_before = frozenset[str]()

    @property
    def in_transit(self) -> set[Key]:
        """Who arrived since the last kill."""
        return {key for each in self._since_kill for key in each.keys}

    @property
    def unrecorded(self) -> int:
        """How many recipients, over all kills, had a transmission without a record."""
        return self.allowed.total()

    @property
    def repeated(self) -> Counter[Key]:
        """How often each had a mail again."""
        found = Counter[Key]()
        for (key, _), copies in self.copies.items():
            if copies > 1:
                found[key] += copies - 1
        return found

    def arrive(self, transmission: Transmission) -> None:
        """Note what a site accepted."""
        self.transmissions += 1
        self.arrivals += len(transmission.keys)
        self.copies.update((key, transmission.name) for key in transmission.keys)
        self._since_kill.append(transmission)
        for sender, recipient in transmission.keys:
            if sender in self._removed_before:
                self.findings.append(Finding(Kind.RETURNED, f"{sender} to {recipient}"))

    def remove(self, sender: str) -> None:
        """Note that an administrator removed a mail, durably. A site may have what was under way,
        until the kill that follows."""
        self.removed.add(sender)

    def kill(self, waiting: Collection[Key]) -> None:
        """Note a kill, behind which these wait, at least of those in transit."""
        self.kills += 1
        again = self.in_transit.intersection(waiting)
        self.allowed.update(again)
        self.kills_in_transit += bool(again)
        open_of = dict[tuple[int, int], set[Transmission]]()
        for each in self._since_kill:
            if not again.isdisjoint(each.keys):
                open_of.setdefault((each.site, each.connection), set()).add(each)
        for (site, connection), found in open_of.items():
            if len(found) > min(each.most_open for each in found):
                about = f"{len(found)} of connection {connection} to site {site}, kill {self.kills}"
                self.findings.append(Finding(Kind.UNRECORDED, about))
        self._since_kill.clear()
        self._removed_before = frozenset(self.removed)
