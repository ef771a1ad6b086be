"""Number of connections that destinations may use by what is known of them, so that those that
answer find room beside those that do not.

Source: AMB-27; SC-6 for the form; ADR 0070."""

from enum import IntEnum

from postroad.scheduling.ranking import SchedulerRules, ShareLimits, may_grow


class Trust(IntEnum):
    """Facts of a destination, the best first."""

    PROVEN = 0
    """It answered, and took no longer over its last job than `SchedulerRules.prompt`."""

    NEW = 1
    """It has not answered yet, and nothing else is known."""

    FAILING = 2
    """It failed, or takes long: more than half of its connections do, or its last job did."""


PROVEN, NEW, FAILING = Trust


SCALES = (0.0, 10.0, 3.0)
"""Number of connections they may use for each that is free, by trust. The less for the failing, so
that new ones find room beside them."""


class BusyConnections:
    """The connections with jobs, by the trust in their destinations. Some of all are kept for new
    and for failing destinations. Beyond them they may use what no mail for a destination that is
    trusted more wants, but for a share that stays free, so that the next such mail finds room. What
    the failing ones use counts for the new ones, too."""

    def __init__(self, rules: SchedulerRules) -> None:
        self._used = [0] * len(Trust)
        """By trust, also by those that are trusted less."""
        least = (1.0, rules.least_for_new, rules.least_for_failing)
        self._limits = [
            ShareLimits(max(1, int(kept * rules.connections)), scale)
            for kept, scale in zip(least, SCALES, strict=True)
        ]

    def count(self, trust: Trust, number: int) -> None:
        """Add so many connections to those of a trust."""
        for each in range(trust + 1):
            self._used[each] += number

    def may_grow(self, trust: Trust, free: int) -> bool:
        """Return whether destinations of this trust may use one more of the free connections."""
        return trust is PROVEN or may_grow(self._used[trust], self._limits[trust], free)

    def contests(self, free: int) -> list[list[Trust]]:
        """Return whose mails contend for the next of these free connections, and where none of them
        does, whose do then."""
        within, then = [PROVEN], []
        for each in (NEW, FAILING):
            if self._used[each] < self._limits[each].max_message_concurrency:
                within.append(each)
            elif may_grow(self._used[each], self._limits[each], free):
                then.append([each])
        return [within, *then]

    def is_beyond(self, trust: Trust) -> bool:
        """Return whether destinations of this trust use more than is kept for them."""
        if trust is PROVEN:
            return False
        return self._used[trust] > self._limits[trust].max_message_concurrency
