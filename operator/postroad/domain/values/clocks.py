"""Which time is used when the clocks of several hosts are read: what most of them agree on.

One wrong clock among three neither becomes the time nor stops the right ones from being it. Where
no majority agrees, no clock can be shown to be right, and none is used. Source: ADR 0016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter

AGREEING = timedelta(seconds=5)
"""How far two right clocks may be apart, beyond what reading them leaves open."""


@dataclass(frozen=True, slots=True)
class HostTime:
    """One host's clock: `time`, give or take `doubt`, at the moment the reading was handed over."""

    host: str
    time: datetime
    doubt: timedelta = timedelta(0)

    def agrees_with(self, other: HostTime) -> bool:
        return abs(self.time - other.time) <= AGREEING + self.doubt + other.doubt


@dataclass(frozen=True, slots=True)
class Readings:
    """The clocks that were read, all as of one moment. `hosts` counts the hosts that were asked: a
    host that did not reply in time still has its vote, or a quick wrong one would decide alone."""

    times: tuple[HostTime, ...]
    hosts: int

    def later(self, passed: timedelta) -> Readings:
        """Return what the clocks show when some time has passed."""
        times = (HostTime(each.host, each.time + passed, each.doubt) for each in self.times)
        return Readings(tuple(times), self.hosts)


@dataclass(frozen=True, slots=True)
class AgreedTime:
    """The time that most hosts agree on, and the hosts that disagree with it."""

    time: datetime
    doubt: timedelta
    votes: int
    wrong: tuple[HostTime, ...]


def agreed_time(readings: Readings) -> AgreedTime | None:
    """Return the median of the largest group of clocks that agree with one of them; None when that
    group is no majority of the hosts that were asked."""
    groups = (_agreeing(each, readings.times) for each in readings.times)
    largest = max(groups, key=len, default=[])
    if 2 * len(largest) <= readings.hosts:
        return None
    middle = largest[(len(largest) - 1) // 2]
    wrong = tuple(each for each in readings.times if each not in largest)
    return AgreedTime(middle.time, middle.doubt, len(largest), wrong)


def _agreeing(one: HostTime, times: Sequence[HostTime]) -> list[HostTime]:
    """Return the clocks that agree with one of them, in order."""
    return sorted((each for each in times if each.agrees_with(one)), key=attrgetter("time"))
