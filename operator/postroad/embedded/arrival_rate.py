"""Whether mail is coming in right now: what a sync may wait for others on (LQ-29)."""

from __future__ import annotations

RECENT_SECONDS = 0.02
"""A mail that came so lately speaks for another one soon."""


class ArrivalRate:
    """Mails that are being received in this process, and those that others have stored in spool
    files and announced. Times are seconds of the event loop's clock."""

    def __init__(self) -> None:
        self.under_way = 0
        """Mails that this process is receiving; recovery lets them pass."""
        self._last = self._before = float("-inf")

    def announce(self, now: float, within: float) -> bool:
        """Note a mail that another process has stored. Whether two came in that time before it, so
        that others can be expected to share its sync."""
        is_crowded = now - self._before < within
        self._before, self._last = self._last, now
        return is_crowded

    def is_busy(self, now: float) -> bool:
        """Whether there will be another mail in a moment."""
        return self.under_way > 0 or now - self._last < RECENT_SECONDS
