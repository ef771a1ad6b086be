"""How long a client may take: for a command, for a mail, for its session. Pure.

Times are seconds of the event loop's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from postroad.domain.smtp.replies import Reply
from postroad.intake import reply_texts


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long a client may take. Source: RFC 5321 4.5.3.2.7 (5 minutes for a command), 4.5.3.2.5
    (3 minutes for a block of data)."""

    command: timedelta = timedelta(minutes=5)
    """For a whole command: an octet of it does not extend the time."""

    data_block: timedelta = timedelta(minutes=3)
    """Between two chunks of a mail."""

    least_bytes_per_second: int = 500
    """Of a whole mail, after `grace`. Postfix's default, too (smtpd_min_data_rate)."""

    grace: timedelta = timedelta(minutes=5)
    session: timedelta = timedelta(hours=1)
    """No mail begins in an older session."""

    stalled: timedelta = timedelta(seconds=10)
    """Without progress (an accepted command of a mail, a mail that arrives as fast as
    `least_bytes_per_second`) while the intake is full; then the intake ends the session."""

    tls: timedelta = timedelta(minutes=1)
    goodbye: timedelta = timedelta(seconds=5)


class Deadlines:
    """When a session ends at the latest, and the reply that ends it."""

    __slots__ = ("_grace", "_mail_ends", "_progress", "_rate", "_stalled", "session_ends")

    def __init__(self, timeouts: ClientTimeouts, now: float) -> None:
        self._grace = timeouts.grace.total_seconds()
        self._rate = timeouts.least_bytes_per_second
        self._mail_ends = 0.0
        self._stalled = timeouts.stalled.total_seconds()
        self._progress = now
        self.session_ends = now + timeouts.session.total_seconds()

    def begin_mail(self, now: float) -> None:
        """Start the deadline of a mail."""
        self._progress = now
        self._mail_ends = now + self._grace

    def progressed(self, now: float) -> None:
        """Note an accepted command of a mail, or an accepted mail."""
        self._progress = now

    def is_stalled(self, now: float, *, received: int | None) -> bool:
        """Whether the client makes no progress; `received` as for `reason`."""
        return now >= self._progress + self._stalled + (received or 0) / self._rate

    def of_mail(self, received: int) -> float:
        """Return the deadline of a mail of which that many octets have arrived."""
        return self._mail_ends + received / self._rate

    def reason(self, now: float, *, received: int | None) -> Reply:
        """Return the reply to a client that was too slow. `received`: octets of the mail that it
        sends; None: it sends none."""
        if received is not None:
            return reply_texts.TOO_SLOW if now >= self.of_mail(received) else reply_texts.IDLE
        return reply_texts.TOO_LONG if now >= self.session_ends else reply_texts.IDLE
