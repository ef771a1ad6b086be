"""How many reports one address gets: evenly spread, with a bounded wait. Pure: the clock is passed
in.

A mail with a forged sender, or a list of addresses that are gone, must not bury one mailbox under
reports. Source: RFC 3834 2; ADR 0052.
"""

from __future__ import annotations

from datetime import timedelta

from postroad.domain.delivery.paces import Paces, Rate

REPORTS_PER_MINUTE = 60
"""Reports of one process to one address by default; the settings and a MailQueue give others."""

LONGEST_WAIT = timedelta(hours=1)
"""A report that would wait longer is not sent."""

MOST_ADDRESSES = 10_000
"""Addresses that are remembered, when those whose reports are over have been forgotten."""


class ReportLimit:
    """The reports of one process: so many a minute for each address, after as many at once."""

    def __init__(self, per_minute: int) -> None:
        self._rate = Rate(per_minute, burst=per_minute)
        self._paces = Paces(slack=0.0, most=MOST_ADDRESSES)

    def wait_of(self, address: str, now: timedelta) -> timedelta | None:
        """Count a report; return how long it waits before it is sent; None: it is not sent, and not
        counted."""
        key, seconds = address.lower(), now.total_seconds()
        wait = timedelta(seconds=max(self._paces.wait(key, self._rate, seconds), 0.0))
        if wait > LONGEST_WAIT:
            return None
        self._paces.take(key, self._rate, seconds)
        return wait

    def give_back(self, address: str) -> None:
        """Count a report not that was counted and is made later."""
        self._paces.give_back(address.lower(), self._rate)
