"""How busy this machine is, as Linux tells a thread of itself: proc(5), schedstat."""

from __future__ import annotations

import time
from pathlib import Path

FRESH_SECONDS = 0.1
"""How long a figure holds, and the least time that it is about."""


class MachineLoad:
    """`Load` of the thread that asks, which is to be always the same one."""

    def __init__(self, schedstat: Path = Path("/proc/thread-self/schedstat")) -> None:
        self._schedstat = schedstat
        self._asked_at = float("-inf")
        self._wanted = 0
        self._demand = 0.0

    def demand(self) -> float:
        now = time.monotonic()
        if now - self._asked_at >= FRESH_SECONDS:
            wanted = self._nanoseconds()
            self._demand = (wanted - self._wanted) / 1e9 / (now - self._asked_at)
            self._asked_at, self._wanted = now, wanted
        return self._demand

    def _nanoseconds(self) -> int:
        """Return for how long the thread ran or waited for a processor in its life; 0 where the
        system does not say."""
        try:
            ran, waited, _ = self._schedstat.read_text().split()
        except (OSError, ValueError):
            return 0
        return int(ran) + int(waited)
