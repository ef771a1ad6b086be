"""Lifetime of rows in the view, and the compaction windows by which Cassandra drops them.

Cassandra drops a data file whole only when everything in it has expired, so rows have a lifetime,
and files are cut by time: one file per compaction window. Live mails are rolled forward long before
their rows could expire. Source: 001 Decision; ADR 0004."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroad.errors import ConfigurationRefused

WINDOWS = 30
"""Compaction windows that a row lifetime is cut into: some tens, as TWCS wants. More would mean
more files per read, fewer would keep dead rows longer (one window)."""

MAX_GC_GRACE = timedelta(hours=3)
"""Time for which a tombstone is kept, so that a host that was away gets the deletion from hints:
Cassandra stores hints for three hours (max_hint_window), and drops those older than this."""

DEAD_LETTER_LIFETIME = timedelta(days=30)
"""The default lifetime of a dead letter."""

DEAD_LETTER_MEMORY = timedelta(days=100)
"""Time for which a view records that a dead letter was deleted: much longer than dead letters live,
and than a Cassandra node may be away that is neither repaired nor replaced."""

DEAD_LETTER_RETURN = timedelta(days=9)
"""A dead letter that is younger was not deleted before: its tombstone would be there, which
Cassandra keeps for ten days (`gc_grace_seconds` of a table that sets none)."""

SLICES = 4
"""Slices in a row lifetime, at least: a slice is cleaned long before its rows expire."""

MAX_ARCHIVE_WAIT = timedelta(days=14)
"""Time for which cleanup waits for an archive where rows live for very long, or for ever."""

_LONG_AGO = timedelta(days=36500)
_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """`compaction_window` is whole minutes, or whole hours from two hours on, or whole days from
    two days on, so that each can be written in one of Cassandra's units."""

    row_lifetime: timedelta
    compaction_window: timedelta
    gc_grace: timedelta


def lifetimes_of(
    row_lifetime: timedelta, slice_windows: Iterable[timedelta], longest_retry_step: timedelta
) -> Lifetimes:
    """Return what the tables need, for the queues that share them.

    `slice_windows` are the windows of all queues, past ones included while their rows live;
    `longest_retry_step` is the longest time between two entries of any mail.

    Raises:
        ConfigurationRefused: a row could expire before its mail's next entry: the lifetime is not
            longer than twice the longest retry step, or shorter than four slices."""
    window = max(slice_windows, default=_HOUR)
    if window > longest_slice(row_lifetime) or longest_retry_step > longest_step(row_lifetime):
        shortest = max(2 * longest_retry_step + _SECOND, SLICES * window)
        raise ConfigurationRefused(
            f"rowLifetime {row_lifetime} is too short: rows would expire before their mails' next"
            " entry",
            hint=f"at least {shortest}: four slices, and more than twice the longest retry step",
        )
    return Lifetimes(
        row_lifetime=row_lifetime,
        compaction_window=_in_whole_units(max(row_lifetime / WINDOWS, window)),
        gc_grace=min(MAX_GC_GRACE, row_lifetime / 4),
    )


def longest_slice(row_lifetime: timedelta) -> timedelta:
    """Return the longest slice window, in whole seconds, of which a row lifetime has four.

    >>> longest_slice(timedelta(hours=10)) == timedelta(hours=2.5)
    True
    """
    return row_lifetime / SLICES // _SECOND * _SECOND


def longest_step(row_lifetime: timedelta) -> timedelta:
    """Return the longest retry step, in whole seconds, of which a row lifetime is more than twice.

    >>> longest_step(timedelta(hours=10)) == timedelta(hours=5) - timedelta(seconds=1)
    True
    """
    return (row_lifetime - _SECOND) / 2 // _SECOND * _SECOND


def longest_archive_wait(row_lifetime: timedelta) -> timedelta:
    """Return how long a slice that browse start has passed waits to be archived: a quarter of the
    row lifetime. When the slice is passed, half of that is over at most, because waiting mail is
    rolled forward then.

    >>> longest_archive_wait(timedelta(days=14))
    datetime.timedelta(days=3, seconds=43200)
    """
    return min(row_lifetime / 4, MAX_ARCHIVE_WAIT)


def oldest_that_waits(now: datetime, row_lifetime: timedelta) -> datetime:
    """Return the moment from which on slices may wait to be archived: earlier ones are cleaned,
    while a quarter of their rows' lifetime is left."""
    return now - min(row_lifetime, _LONG_AGO) * 3 / 4


def is_half_over(age: timedelta, remaining: timedelta | None, lifetime: timedelta) -> bool:
    """Return whether a row must be rolled forward: half of its own lifetime is over (it may have
    been written under another one), or half of the present lifetime of rows. The second lets slices
    drain in time whose other rows are younger and live shorter.

    >>> is_half_over(timedelta(hours=3), timedelta(hours=2), timedelta(days=14))
    True
    """
    return age > lifetime / 2 or (remaining is not None and remaining < age)


def _in_whole_units(window: timedelta) -> timedelta:
    """Round up to a unit that is small against the window."""
    unit = _DAY if window >= 2 * _DAY else _HOUR if window >= 2 * _HOUR else _MINUTE
    return -(-window // unit) * unit
