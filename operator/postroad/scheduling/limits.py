"""Limits by rate: how much mail may go in a minute, evenly (GCRA, the generic cell rate algorithm).

Each limit has one number, the instant at which the next mail is due. A mail may come earlier than
that by as much as the burst allows; each one moves the instant by the time between two.
"""

from __future__ import annotations

from dataclasses import dataclass

from postroad.errors import InvalidSettings

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Rate:
    """So many mails a minute, of which `burst` may go at once."""

    per_minute: float
    burst: int = 1

    def __post_init__(self) -> None:
        if self.per_minute <= 0 or self.burst < 1:
            raise InvalidSettings("a limit is above zero a minute, and its burst at least 1")

    def shared_by(self, processes: int) -> Rate:
        """Return the part of one of several processes."""
        return Rate(self.per_minute / processes, max(1, self.burst // processes))

    @property
    def interval(self) -> float:
        """Seconds between two mails."""
        return MINUTE / self.per_minute


class Paces:
    """When the next mail of each limit is due. `slack`: seconds by which it may be early, because
    the caller asks no more often. Instants are seconds on a clock that never goes back."""

    def __init__(self, slack: float) -> None:
        self._slack = slack
        self._due: dict[str, float] = {}

    def wait(self, name: str, rate: Rate, now: float) -> float:
        """Return in how many seconds a mail may go; 0 or less: now."""
        early = (rate.burst - 1) * rate.interval + self._slack
        return self._due.get(name, now) - early - now

    def take(self, name: str, rate: Rate, now: float) -> None:
        """Count a mail that goes."""
        self._due[name] = max(self._due.get(name, now), now) + rate.interval

    def forget(self, now: float) -> None:
        """Forget what is not due any more: it is as if no mail had gone."""
        self._due = {name: due for name, due in self._due.items() if due > now}
