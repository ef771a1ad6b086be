"""Chooses the window and the number of buckets that suit the mail that a queue has had: advice,
never applied.

A window cannot grow back and buckets cannot become fewer, so in doubt the advice is to keep the
present values. Every configuration advised is one that `rules` accepts.
Source: 000 Decision (about 10,000 mails in a slice of the users' maximum throughput; as many
buckets as Cassandra has servers)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from math import ceil

from postroad.domain.configuration.rules import MIN_WINDOW, ViewConfiguration, windows_dividing
from postroad.domain.values.instants import format_duration

ROWS_IN_SLICE = 10_000
"""The rows that the busiest slice should have. Source: 000 Decision (sliceWindow)."""

ROWS_IN_PARTITION = 100_000
BYTES_IN_PARTITION = 100_000_000
"""Cassandra reads, repairs and compacts larger partitions badly."""

MAX_BUCKETS = 1024
"""Range that the API server accepts in `spec.view.bucketCount`."""

ENOUGH = timedelta(days=1)
"""Over how much time slices must be known for the busiest hour of a day to be among them."""


@dataclass(frozen=True, slots=True)
class SliceCount:
    """Number of rows a closed slice had when it was counted. One that was closed while the window
    became shorter may name the longer window with the rows of the shorter one: its rate comes
    out too low, never too high."""

    start: datetime
    window: timedelta
    rows: int

    def rows_in(self, window: timedelta) -> Fraction:
        """Return how many rows a slice of another window has at this slice's rate."""
        return Fraction(self.rows * (window // MIN_WINDOW), self.window // MIN_WINDOW)


@dataclass(frozen=True, slots=True)
class Seen:
    """Facts that advice is given from: the closed slices that are still recorded (cleanup forgets
    those whose mail is over), from the first to the end of the last; the hosts that Cassandra
    has; about how many bytes a row has, where rows could be looked at."""

    hosts: int
    slices: int = 0
    since: datetime | None = None
    until: datetime | None = None
    busiest: SliceCount | None = None
    row_bytes: int | None = None

    def with_slice(self, found: SliceCount) -> Seen:
        """Return this with one more slice, later than those before."""
        busiest = self.busiest
        if busiest is None or found.rows_in(busiest.window) > busiest.rows:
            busiest = found
        return replace(
            self,
            slices=self.slices + 1,
            since=self.since or found.start,
            until=found.start + found.window,
            busiest=busiest,
        )

    @property
    def is_enough(self) -> bool:
        """True if the busiest hour of a day is among the slices."""
        return (
            self.since is not None and self.until is not None and self.until - self.since >= ENOUGH
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """A configuration to change to, which may be the present one, and why. The reasons are
    sentences without their end."""

    configuration: ViewConfiguration
    window_reason: str
    buckets_reason: str


def advise(present: ViewConfiguration, seen: Seen) -> Advice:
    """Return the window and the buckets that suit what was seen, allowed after the present ones.
    The window is the divisor of the present one with which the busiest slice comes nearest to
    10,000 rows, by ratio: 14,000 rows in an hour are left alone, as half an hour would hold 7,000.
    Buckets are judged for that window."""
    window = _window(present.slice_window, seen.busiest)
    buckets, buckets_reason = _buckets(present.bucket_count, window, seen)
    return Advice(
        replace(present, slice_window=window, bucket_count=buckets),
        _window_reason(present.slice_window, window, seen),
        buckets_reason,
    )


def _window(present: timedelta, busiest: SliceCount | None) -> timedelta:
    if busiest is None or not busiest.rows:
        return present

    def distance(window: timedelta) -> tuple[Fraction, timedelta]:
        ratio = busiest.rows_in(window) / ROWS_IN_SLICE
        return max(ratio, 1 / ratio), -window

    return min(windows_dividing(present), key=distance)


def _window_reason(present: timedelta, window: timedelta, seen: Seen) -> str:
    if seen.busiest is None:
        return "no closed slice is recorded, so there is too little history to judge the window"
    busiest, length = seen.busiest, format_duration(seen.busiest.window)
    parts = [f"the busiest slice held {busiest.rows:,} rows in {length}"]
    if window != busiest.window:
        parts.append(f"at its rate {format_duration(window)} holds {_about(busiest, window)}")
    parts.append(f"about {ROWS_IN_SLICE:,} is the aim")
    if window == present and busiest.rows_in(present) * 2 < ROWS_IN_SLICE:
        parts.append("a window cannot grow")
    if not seen.is_enough:
        parts.append(
            "too little history: the slices cover less than a day, and a busier one may not be "
            "among them"
        )
    return "; ".join(parts)


def _buckets(present: int, window: timedelta, seen: Seen) -> tuple[int, str]:
    rows = round(seen.busiest.rows_in(window)) if seen.busiest else 0
    needed = max(
        ceil(rows / ROWS_IN_PARTITION), ceil(rows * (seen.row_bytes or 0) / BYTES_IN_PARTITION)
    )
    buckets = max(present, min(max(seen.hosts, needed), MAX_BUCKETS))
    hosts = f"Cassandra has {seen.hosts} host{'' if seen.hosts == 1 else 's'}"
    parts = [hosts]
    if needed > seen.hosts:
        each = f" of about {seen.row_bytes:,} bytes" if seen.row_bytes else ""
        parts.append(
            f"{rows:,} rows{each} in {format_duration(window)} take {needed} buckets to keep a "
            f"partition under {ROWS_IN_PARTITION:,} rows and {BYTES_IN_PARTITION // 1_000_000} MB"
        )
    elif buckets > present:
        parts.append("as many buckets spread a slice over all of them")
    if present > max(seen.hosts, needed):
        parts.append("buckets cannot become fewer")
    return buckets, "; ".join(parts)


def _about(busiest: SliceCount, window: timedelta) -> str:
    return f"about {round(busiest.rows_in(window)):,}"
