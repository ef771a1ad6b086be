"""Whether mail is arriving, so that a sync can wait for others to share it (LQ-29): for `sync_wait`
of StoreOptions at most."""

from __future__ import annotations

RECENT_SECONDS = 0.02
"""Another mail is expected within this time of the last one."""


class ArrivalRate:
    """Mails that this process is receiving, and announcements of receivers. Times are seconds of
    the event loop's clock."""

    def __init__(self) -> None:
        self.under_way = 0
        """Mails that this process is receiving; recovery pauses for them."""
        self._last = self._before = float("-inf")

    def announce(self, now: float, within: float) -> bool:
        """Count the announcement of a stored mail. Returns whether the last but one came `within`
        these seconds, so that others are expected to share its sync."""
        is_crowded = now - self._before < within
        self._before, self._last = self._last, now
        return is_crowded

    def is_busy(self, now: float) -> bool:
        """Whether another mail is expected soon."""
        return self.under_way > 0 or now - self._last < RECENT_SECONDS
