"""What of a destination's replies is out of line with those of the days before. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import sqrt

HISTORY = timedelta(days=7)
"""How far back replies are compared."""

FEWEST = 20
"""Outcomes, now and before, from which on shares are compared."""

FACTOR = 2
DISTANCE = 4
"""A share is out of line where it has doubled, or what is beside it has halved, and where it lies
further off than chance takes one of ten thousand destinations: by four standard errors of the
difference of two shares."""

REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Tally:
    """Recipients by outcome."""

    delivered: int = 0
    deferred: int = 0
    failed: int = 0

    @property
    def refused(self) -> int:
        return self.deferred + self.failed

    @property
    def total(self) -> int:
        return self.delivered + self.refused


@dataclass(frozen=True, slots=True)
class Departure:
    """A share of the outcomes that has grown: of all refusals, or of one class."""

    what: str
    share: float
    share_before: float

    def __str__(self) -> str:
        return f"{self.what} {self.share:.1%} (before: {self.share_before:.1%})"


def departures(
    now: Tally, classes: Mapping[str, int], before: Tally, classes_before: Mapping[str, int]
) -> tuple[Departure, ...]:
    """Return what has grown out of line, the refusals as a whole first. Nothing is
    compared with fewer than 20 outcomes on either side."""
    if min(now.total, before.total) < FEWEST:
        return ()
    counts = {REFUSED: (now.refused, before.refused)}
    counts |= {each: (classes[each], classes_before.get(each, 0)) for each in sorted(classes)}
    return tuple(
        Departure(what, count / now.total, count_before / before.total)
        for what, (count, count_before) in counts.items()
        if _has_grown(count, now.total, count_before, before.total)
    )


def _has_grown(count: int, total: int, count_before: int, total_before: int) -> bool:
    share, share_before = count / total, count_before / total_before
    pooled = (count + count_before) / (total + total_before)
    error = sqrt(pooled * (1 - pooled) * (1 / total + 1 / total_before))
    if share - share_before <= DISTANCE * error:
        return False
    return share >= FACTOR * share_before or (1 - share_before) >= FACTOR * (1 - share)
