"""Which stretch of time an answer is about, and what of it the lake lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from postroad.domain.instants import rfc3339
from postroad.pipeline.planning import Gap, merged


class Stretch(NamedTuple):
    """The moments from `first` on and before `before`."""

    first: datetime
    before: datetime

    def before_it(self, length: timedelta) -> Stretch:
        """Return the stretch of this length that ends where this one begins."""
        return Stretch(self.first - length, self.first)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What an answer is about. `lacking`: of which slices the lake does not have all entries, so
    that what happened to these is missing in the answer."""

    stretch: Stretch
    lacking: tuple[Gap, ...] = ()

    def sentences(self) -> tuple[str, ...]:
        """Return one line for each part that is lacking."""
        return tuple(
            f"the answer lacks mail that was queued from {rfc3339(first)} on and before "
            f"{rfc3339(before)}: the lake does not have it"
            for first, before in self.lacking
        )


def coverage_of(
    stretch: Stretch, gaps: Iterable[Gap], begun: datetime | None, through: datetime | None
) -> Coverage:
    """Return how far the lake covers a stretch. `begun` is its first slice, `through` the instant
    before which all slices are archived; None: there is none yet."""
    outside = [
        Gap(stretch.first, begun or stretch.before),
        Gap(through or stretch.first, stretch.before),
    ]
    clipped = (
        Gap(max(first, stretch.first), min(before, stretch.before))
        for first, before in (*gaps, *outside)
    )
    return Coverage(stretch, merged(each for each in clipped if each.first < each.before))
