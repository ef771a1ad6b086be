"""CPU time of processes, as Linux counts it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

V1, V2 = Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup")

REMOVAL_SECONDS, REMOVAL_LOOKS = 10.0, 500
"""How long killed processes may stay in a control group."""


def family(parent: int) -> list[int]:
    """Return the ids of a process and of its children."""
    found = [parent]
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(status.parent.name))
    return found


def cpu_seconds(processes: list[int]) -> float:
    """Return the CPU that processes have used, with their children that ended."""
    total = 0.0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


class ControlGroup:
    """A control group. Its CPU time includes processes that ended, which a server that forks for
    each mail leaves behind in no process of its own. Needs root."""

    def __init__(self, name: str) -> None:
        self._folder = (V1 if V1.is_dir() else V2) / f"postroad-{os.getpid()}-{name}"
        self._folder.mkdir()

    def around(self) -> Sequence[str]:
        """Return the command that runs the command behind it in this group."""
        return ("sh", "-c", f'echo $$ > {self._folder}/cgroup.procs && exec "$@"', "sh")

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of all processes that ran in it, until now."""
        if (self._folder / "cpuacct.usage").exists():
            return int((self._folder / "cpuacct.usage").read_text()) / 1e9
        found = re.search(r"usage_usec (\d+)", (self._folder / "cpu.stat").read_text())
        assert found, "cpu.stat has usage_usec"
        return int(found[1]) / 1e6

    @property
    def processes(self) -> int:
        """How many processes are in it now."""
        return len((self._folder / "cgroup.procs").read_text().split())

    @property
    def resident_bytes(self) -> int:
        """The memory of the processes in it now; what some share counts for each."""
        total = 0
        for process in (self._folder / "cgroup.procs").read_text().split():
            with suppress(OSError, IndexError):
                total += int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return total * os.sysconf("SC_PAGE_SIZE")

    def remove(self) -> None:
        """Remove it once its processes are gone. Raises: OSError when they stay."""
        for _ in range(REMOVAL_LOOKS):
            with suppress(OSError):
                return self._folder.rmdir()
            time.sleep(REMOVAL_SECONDS / REMOVAL_LOOKS)
        return self._folder.rmdir()
