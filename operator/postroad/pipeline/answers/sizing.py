"""How a queue's view should be cut, by the slices that the lake has: advice, never applied. Pure.

Window and buckets are the decision of `domain.configuration.advice`, over a longer history than the
view has. The pace follows from the window.
Source: 000 Decision (updateBrowseStartPace: an update every few slices).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import floor, log10
from statistics import median
from typing import ClassVar

from postroad.domain.configuration.advice import Seen, SliceCount, advise
from postroad.domain.configuration.rules import FIELD_NAMES, ViewConfiguration, value_of
from postroad.domain.values.durations import format_duration

FEWEST_UPDATES = 0.5
MOST_UPDATES = 10
"""Updates of browse start while as many mails end as the median slice has: between them, a pace is
left as it is. With more, slices are checked in vain that have not drained; with fewer, readers go
through slices that have."""


@dataclass(frozen=True, slots=True)
class AdviceLine:
    """What is advised for one field of the configuration, and why."""

    HEAD: ClassVar[tuple[str, ...]] = ("field", "present", "advised", "reason")

    field: str
    present: str
    advised: str
    reason: str

    def cells(self) -> tuple[str, ...]:
        return self.field, self.present, self.advised, self.reason


def sizing(
    present: ViewConfiguration, slices: Iterable[SliceCount], hosts: int, row_bytes: int | None
) -> tuple[AdviceLine, ...]:
    """Return what suits the slices, which need no order. `hosts` are Cassandra's; `row_bytes`: how
    large a row is on average, None where that is unknown."""
    counts = sorted(slices, key=lambda each: each.start)
    seen = Seen(hosts=hosts, row_bytes=row_bytes)
    for each in counts:
        seen = seen.with_slice(each)
    advice = advise(present, seen)
    window = advice.configuration.slice_window
    pace, pace_reason = _pace(present.update_browse_start_pace, window, counts)
    advised = ViewConfiguration(window, advice.configuration.bucket_count, pace)
    reasons = (advice.window_reason, advice.buckets_reason, pace_reason)
    return tuple(
        AdviceLine(name, value_of(present, attribute), value_of(advised, attribute), reason)
        for (attribute, name), reason in zip(FIELD_NAMES.items(), reasons, strict=True)
    )


def _pace(present: int, window: timedelta, slices: Sequence[SliceCount]) -> tuple[int, str]:
    rows = median([float(each.rows_in(window)) for each in slices if each.rows] or [0.0])
    if not rows:
        return present, "no slice has rows, so there is too little history to judge the pace"
    typical = f"the median slice of {format_duration(window)} has about {round(rows):,} rows"
    if FEWEST_UPDATES <= rows / present <= MOST_UPDATES:
        return present, f"{typical}; browse start is updated often enough, and not too often"
    return _rounded(rows), f"{typical}; so browse start is updated about once a slice"


def _rounded(number: float) -> int:
    """Return a number with one significant digit, at least 1."""
    unit: int = 10 ** floor(log10(max(number, 1)))
    return max(1, round(number / unit) * unit)
