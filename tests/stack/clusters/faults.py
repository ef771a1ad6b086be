"""The clock, the syncs and the source address of a process, changed while it runs.

A node or a client preloads a small library (`faults.c`), which follows a file of controls.
libfaketime has four defects that this library avoids: its waits fail in Python, spin in the JVM,
leave shared memory behind when a process is killed, and its drift begins anew at each change (ADR
0022).
"""

import mmap
import struct
import time
from dataclasses import dataclass, replace
from pathlib import Path

from stack import cache, folders
from stack.cache import Entry

SOURCE = folders.SOURCES / "clusters" / "faults.c"
LAYOUT = struct.Struct("=QqqqQ")
"""As `struct controls` in faults.c."""
NS = 1_000_000_000


def library() -> Entry:
    """Return the cache entry of the preloaded library."""

    def make(folder: Path, log: Path) -> None:
        target = folder / "libfaults.so"
        warnings = ("-Wall", "-Wextra", "-Werror")
        cache.run(["gcc", *warnings, "-O2", "-fPIC", "-shared", "-o", target, SOURCE, "-ldl"], log)

    return Entry("faults", cache.key_of(SOURCE), "clusters: clock and disk faults", make)


@dataclass(frozen=True)
class Clock:
    """How a wall clock differs from the machine's."""

    anchor_ns: int = 0
    offset_ns: int = 0
    drift_ppb: int = 0


@dataclass(frozen=True)
class Controls:
    """The faults of a process at this moment."""

    clock: Clock = Clock()
    sync_delay_seconds: float = 0.0


class Faults:
    """The file of controls of one node or client."""

    def __init__(self, path: Path) -> None:
        """Take the file's path; `prepare` creates the file."""
        self.path = path

    def prepare(self) -> None:
        """Create the file, without faults, unless it exists."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(bytes(LAYOUT.size))

    def environment(self, source: str | None = None) -> dict[str, str]:
        """Return the variables by which a program follows these controls, and connects from this
        address."""
        variables = {
            "LD_PRELOAD": str(library().path / "libfaults.so"),
            "POSTROAD_FAULTS_FILE": str(self.path),
        }
        return variables | ({"POSTROAD_FAULTS_SOURCE": source} if source else {})

    def read(self) -> Controls:
        """Return the faults of this moment."""
        _, anchor, offset, drift, delay = LAYOUT.unpack(self.path.read_bytes())
        return Controls(Clock(anchor, offset, drift), delay / 1e6)

    def skew(self, seconds: float, rate: float) -> None:
        """Set the clock this far ahead of the machine's, and let it run at this rate from now."""
        clock = Clock(time.time_ns(), round(seconds * NS), round((rate - 1) * NS))
        self._write(replace(self.read(), clock=clock))

    def slow_syncs(self, seconds: float) -> None:
        """Let each fsync, fdatasync and msync take this much longer."""
        self._write(replace(self.read(), sync_delay_seconds=seconds))

    def _write(self, controls: Controls) -> None:
        clock = controls.clock
        fields = (clock.anchor_ns, clock.offset_ns, clock.drift_ppb)
        delay = round(controls.sync_delay_seconds * 1e6)
        with self.path.open("r+b") as file, mmap.mmap(file.fileno(), LAYOUT.size) as shared:
            (sequence,) = struct.unpack_from("=Q", shared)
            shared[:8] = struct.pack("=Q", sequence | 1)  # readers wait until it is even again
            shared[8:] = LAYOUT.pack(0, *fields, delay)[8:]
            shared[:8] = struct.pack("=Q", (sequence | 1) + 1)
