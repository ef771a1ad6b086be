"""Which stretch of time an answer is about, and what of it the lake lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from postroad.domain.values.instants import rfc3339
from postroad.pipeline.archive.planning import Gap, merged


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
    that what happened to these is missing in the answer. `as_of`: when what it has was last read
    from the view; None: never, or the answer has all of the stretch."""

    stretch: Stretch
    lacking: tuple[Gap, ...] = ()
    as_of: datetime | None = None

    def sentences(self) -> tuple[str, ...]:
        """Return one line for each part that is lacking."""
        lines = [
            f"the answer lacks mail that was queued from {rfc3339(first)} on and before "
            f"{rfc3339(before)}: the lake does not have it"
            for first, before in self.lacking
        ]
        if self.as_of is not None and self.as_of < self.stretch.before:
            lines.append(
                f"the answer lacks what happened since {rfc3339(self.as_of)}: the lake was written"
                " then"
            )
        return tuple(lines)


def coverage_of(
    stretch: Stretch,
    gaps: Iterable[Gap],
    begun: datetime | None,
    through: datetime | None,
    as_of: datetime | None = None,
) -> Coverage:
    """Return how far the lake covers a stretch. `begun` is its first slice, `through` the instant
    before which the lake has all slices; None: there is none yet. `as_of`: as of a coverage."""
    outside = [
        Gap(stretch.first, begun or stretch.before),
        Gap(through or stretch.first, stretch.before),
    ]
    clipped = (
        Gap(max(first, stretch.first), min(before, stretch.before))
        for first, before in (*gaps, *outside)
    )
    lacking = merged(each for each in clipped if each.first < each.before)
    return Coverage(stretch, lacking, as_of)
