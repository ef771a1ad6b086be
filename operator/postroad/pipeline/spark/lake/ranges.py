"""Ranges of slice starts, as conditions that Iceberg answers by whole files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.queues.slices import slice_of

TimeRange = tuple[datetime, datetime]
"""From the first moment on, and before the second."""


def ranges_of(starts: Iterable[datetime], unit: timedelta) -> list[TimeRange]:
    """Return the hours, or days, that these moments lie in, in order; those that meet as one."""
    found: list[TimeRange] = []
    for start in sorted({slice_of(each, unit) for each in starts}):
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], start + unit)
        else:
            found.append((start, start + unit))
    return found


def within(moment: Column, ranges: Sequence[TimeRange]) -> Column:
    """Return whether a moment is in one of the ranges. A tree, because Spark goes down the branches
    of a condition by recursion."""
    if len(ranges) > 1:
        middle = len(ranges) // 2
        return within(moment, ranges[:middle]) | within(moment, ranges[middle:])
    if not ranges:
        return F.lit(False)
    ((first, before),) = ranges
    return (moment >= F.lit(first)) & (moment < F.lit(before))
