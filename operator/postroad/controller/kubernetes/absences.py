"""Since when objects are missing: what is missing for a moment has not been given up.

An object that is replaced, restored, or lacking in one response of the API server is there again
soon. What is done because it is gone waits for `PATIENCE`. Source: ADR 0077.
"""

from collections.abc import Hashable
from datetime import timedelta

from postroad.ports.clock import Clock

PATIENCE = timedelta(minutes=10)
"""Longer than a replacement by a tool for deployments takes, and than most restores."""


class Absences:
    """The objects that this process found missing. Another process begins anew, and so does one
    that did not look for an object for so long that it may have come and gone meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Hashable, timedelta] = {}
        self._seen: dict[Hashable, timedelta] = {}

    def end(self, of: Hashable) -> None:
        """Record that an object is there, or that its absence has had its effect. Idempotent."""
        self._since.pop(of, None)
        self._seen.pop(of, None)

    def has(self, of: Hashable) -> bool:
        """True if an object was missing when it was last looked for."""
        return of in self._since

    def lasts(self, of: Hashable) -> bool:
        """True if an object that is missing now has been missing for `PATIENCE`."""
        now = self._clock.elapsed()
        if now - self._seen.get(of, now) >= PATIENCE:
            self._since.pop(of)
        self._seen[of] = now
        return now - self._since.setdefault(of, now) >= PATIENCE
