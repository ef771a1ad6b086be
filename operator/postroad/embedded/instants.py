"""Instants as the store keeps them: microseconds since 1970, `us`. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from postroad.domain.identifiers import EPOCH

LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""No mail is due later; a delay beyond it ends here."""

MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """Return an instant as the store keeps it."""
    return (moment - EPOCH) // MICROSECOND


def instant(us: int) -> datetime:
    """Return the instant that the store keeps as `us`."""
    return EPOCH + timedelta(microseconds=us)


def due_after(now: datetime, delay: timedelta) -> int:
    """Return when a delay is over, as the store keeps it; 0 when it is none. Centuries are capped
    at LATEST.

    >>> due_after(EPOCH, timedelta(seconds=1))
    1000000
    """
    if delay <= timedelta(0):
        return 0
    return microseconds(LATEST if delay >= LATEST - now else now + delay)
