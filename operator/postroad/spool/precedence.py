"""Who goes first when processors are short: mail that comes in, for a while. Pure but for memory.

A client waits for its 250, nobody waits for the end of a delivery. So while a burst of mail comes
in and the event loop cannot have as much of a processor as it wants, one turn is handed out for
every few mails that came. This ends after seconds, whatever goes on: what was accepted should
leave. With processors to spare, and when nothing comes in, nothing is held back.
Source: ADR 0015.
"""

from __future__ import annotations

SHARE = 4
"""So many mails come in for one turn that is handed out."""

FULL = 0.85
"""The demand for a processor at which they are short."""

LONGEST_SECONDS = 5.0
"""How long deliveries stand back at most."""

RELIEF_SECONDS = 1.0
"""How long processors must not have been short before deliveries stand back again."""

PAUSE_SECONDS = 0.02
"""After which who was held back may ask again."""


class Precedence:
    """Decides whether the next turn may be handed out now. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._came = 0
        self._began: float | None = None
        self._last = float("-inf")

    def came_in(self) -> None:
        """Note a mail that came in."""
        self._came = min(self._came + 1, SHARE)

    def lets_out(self, now: float, *, is_receiving: bool, demand: float) -> bool:
        """Whether a turn may be handed out."""
        if not is_receiving or demand < FULL:
            return True
        if self._began is None or now - self._last > RELIEF_SECONDS:
            self._began, self._came = now, 0
        self._last = now
        if now - self._began >= LONGEST_SECONDS:
            return True
        if self._came < SHARE:
            return False
        self._came = 0
        return True
