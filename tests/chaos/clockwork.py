"""The clocks of a real process, made wrong from outside while it runs.

The nemesis and the process map the same small file. The file has three values: by how much the date
is wrong, how fast it runs, and by how much all clocks lag behind the machine's, because the
"machine" of the process stood still. All Python code of the process reads these clocks. Drivers
written in C or Rust keep the true time, and so does the kernel's sleep.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

_LAYOUT = struct.Struct("=dddd")  # offset, rate, since, lag; seconds

_TRUE_MONOTONIC = time.monotonic
_TRUE_TIME = time.time
_TRUE_CLOCK = time.clock_gettime


def true_now() -> float:
    """Return the instant by the machine's clock, which the histories use."""
    return _TRUE_MONOTONIC()


class Controls:
    """The file of one process."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_LAYOUT.pack(0.0, 1.0, 0.0, 0.0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    def _read(self) -> tuple[float, float, float, float]:
        offset, rate, since, lag = _LAYOUT.unpack(self._map[:])
        return offset, rate, since, lag

    def set(self, offset: float, rate: float = 1.0) -> None:
        """Make the date wrong from now on; a lag stays as it is."""
        self._map[:] = _LAYOUT.pack(offset, rate, true_now(), self.lag)

    @property
    def lag(self) -> float:
        return self._read()[3]

    @lag.setter
    def lag(self, seconds: float) -> None:
        self._map[:] = _LAYOUT.pack(*self._read()[:3], seconds)

    def date(self) -> float:
        """Return the process' date."""
        offset, rate, since, lag = self._read()
        return _TRUE_TIME() + offset + (true_now() - since) * (rate - 1.0) - lag

    def install(self) -> None:
        """Let this process use these clocks."""

        def clock_gettime(which: int) -> float:
            if which == time.CLOCK_REALTIME:
                return self.date()
            return _TRUE_CLOCK(which) - self.lag

        time.time = self.date
        time.time_ns = lambda: int(self.date() * 1e9)
        time.monotonic = lambda: true_now() - self.lag
        time.clock_gettime = clock_gettime
        time.clock_gettime_ns = lambda which: int(clock_gettime(which) * 1e9)
