"""Instants and durations as numbers and as text: microseconds since 1970, and RFC 3339. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from postroad.domain.values.identifiers import EPOCH

LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""No mail is due later; a delay beyond it ends here."""

MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """Return an instant as microseconds since 1970."""
    return (moment - EPOCH) // MICROSECOND


def instant(us: int) -> datetime:
    """Return the instant that is so many microseconds after 1970 began."""
    return EPOCH + timedelta(microseconds=us)


def optional_microseconds(moment: datetime | None) -> int | None:
    """Return `microseconds` of what may be missing."""
    return None if moment is None else microseconds(moment)


def optional_instant(us: int | None) -> datetime | None:
    """Return `instant` of what may be missing."""
    return None if us is None else instant(us)


def duration_us(duration: timedelta) -> int:
    """Return a duration in microseconds."""
    return duration // MICROSECOND


def duration(us: int) -> timedelta:
    """Return a duration of so many microseconds."""
    return timedelta(microseconds=us)


def moment_after(now: datetime, delay: timedelta) -> datetime | None:
    """Return when a delay is over; None when it is none. Centuries are capped at LATEST.

    >>> moment_after(EPOCH, timedelta(days=1)).isoformat()
    '1970-01-02T00:00:00+00:00'
    >>> moment_after(EPOCH, timedelta.max) == LATEST
    True
    """
    if delay <= timedelta(0):
        return None
    return LATEST if delay >= LATEST - now else now + delay


def rfc3339(moment: datetime | None) -> str | None:
    """Return an instant as text in UTC, to the millisecond. Source: RFC 3339 5.6.

    >>> rfc3339(EPOCH)
    '1970-01-01T00:00:00.000Z'
    """
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
