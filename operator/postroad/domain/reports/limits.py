"""How many reports one address gets: evenly spread, with a bounded wait. Pure: the clock is passed
in.

A mail with a forged sender, or a list of addresses that are gone, must not bury one mailbox under
reports. It is the generic cell rate algorithm. Source: RFC 3834 2; ADR 0052.
"""

from __future__ import annotations

from datetime import timedelta

REPORTS_PER_MINUTE = 60
"""Reports of one process to one address by default; the settings and a MailQueue give others."""

LONGEST_WAIT = timedelta(hours=1)
"""A report that would wait longer is not sent."""

MOST_ADDRESSES = 10_000
"""Addresses that are remembered, when those whose reports are over have been forgotten."""

_MINUTE, _NOW = timedelta(minutes=1), timedelta(0)


class ReportLimit:
    """The reports of one process: so many a minute for each address, after as many at once."""

    def __init__(self, per_minute: int) -> None:
        self._interval = _MINUTE / per_minute
        self._due: dict[str, timedelta] = {}
        """When the next report to an address would be due if reports were evenly spread."""

    def wait_of(self, address: str, now: timedelta) -> timedelta | None:
        """Count a report; return how long it waits before it is sent; None: it is not sent, and not
        counted."""
        key = address.lower()
        due = max(self._due.get(key, now), now)
        wait = max(due - now - (_MINUTE - self._interval), _NOW)
        if wait > LONGEST_WAIT:
            return None
        if key not in self._due and len(self._due) >= MOST_ADDRESSES:
            self._forget(now)
        self._due[key] = due + self._interval
        return wait

    def _forget(self, now: timedelta) -> None:
        """Forget the addresses that have no report before them; of the others, the oldest."""
        self._due = {each: due for each, due in self._due.items() if due > now}
        while len(self._due) >= MOST_ADDRESSES:
            del self._due[next(iter(self._due))]
