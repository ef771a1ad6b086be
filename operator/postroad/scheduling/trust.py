"""How many connections destinations may use by what is known of them, so that those that answer
find room beside those that do not.

Source: AMB-27; SC-6 for the form; ADR 0070.
"""

from __future__ import annotations

from enum import IntEnum

from postroad.scheduling.rules import SchedulerRules, ShareLimits
from postroad.scheduling.shares import may_grow

NEW_SCALE, TROUBLED_SCALE = 10.0, 3.0
"""How many connections they may use for each that is free."""


class Trust(IntEnum):
    """What is known of a destination, the best first."""

    PROVEN = 0
    """It answered, and took no longer over its last job than `SchedulerRules.prompt`."""

    NEW = 1
    """It has not answered yet, and nothing else is known."""

    TROUBLED = 2
    """It failed, or takes long: to answer, or over a job."""


class BusyConnections:
    """The connections with jobs, by the trust in their destinations.

    Some of all are kept for new and for troubled destinations. Beyond them they may use what no
    mail for a destination that is trusted more wants, but for a share of what is free then, so that
    the next such mail finds room. What the troubled ones use counts for the new ones, too.
    """

    def __init__(self, rules: SchedulerRules) -> None:
        self._numbers = dict.fromkeys(Trust, 0)
        self._limits = {
            Trust.NEW: _limits(rules, rules.least_for_new, NEW_SCALE),
            Trust.TROUBLED: _limits(rules, rules.least_for_troubled, TROUBLED_SCALE),
        }

    def count(self, trust: Trust, number: int) -> None:
        """Add so many connections to those of a trust."""
        self._numbers[trust] += number

    def may_grow(self, trust: Trust, free: int) -> bool:
        """Return whether destinations of this trust may use one more of the free connections."""
        limits = self._limits.get(trust)
        return limits is None or may_grow(self._used(trust), limits, free)

    def contests(self, free: int) -> list[list[Trust]]:
        """Return whose mails contend for the next of these free connections, and where none of them
        does, whose do then."""
        within = [each for each in Trust if self._beyond(each) < 0]
        return [
            within,
            *([each] for each in Trust if each not in within and self.may_grow(each, free)),
        ]

    def is_beyond(self, trust: Trust) -> bool:
        """Return whether destinations of this trust use more than is kept for them."""
        return self._beyond(trust) > 0

    def _beyond(self, trust: Trust) -> int:
        """How many more than are kept for a trust are used; a negative number: how many fewer."""
        limits = self._limits.get(trust)
        return -1 if limits is None else self._used(trust) - limits.max_message_concurrency

    def _used(self, trust: Trust) -> int:
        return sum(number for each, number in self._numbers.items() if each >= trust)


def _limits(rules: SchedulerRules, least: float, scale: float) -> ShareLimits:
    return ShareLimits(max(1, int(least * rules.connections)), scale)
