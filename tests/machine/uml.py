"""The machine: a User Mode Linux that is booted, and whose power is cut.

It runs in a chroot of Debian testing, which has its kernel, and in process and mount namespaces of
its own, whose end is the end of all that it started. Its network card is one end of a pair that
lies in the caller's network namespace.
"""

from __future__ import annotations

import asyncio
import subprocess
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from pathlib import Path

from stack import debian
from stack.cache import Entry

SUITE, PACKAGE, MINIMUM = "forky", "user-mode-linux", "7.2"
"""Debian 12's own, 6.1, dies on processors with wide registers."""

OUTSIDE, INSIDE = "192.168.77.1", "192.168.77.2"
CARD, OTHER_END = "uml0", "uml1"
MEMORY = "768M"
BOOT_SECONDS = 240.0

ENTER = """\
root=$1
mkdir -p "$root/host" && mount --rbind / "$root/host"
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev"
shift
exec chroot "$root" "$@"
"""
"""Shows the machine this one's files, below /host."""


def kernel() -> Entry:
    """Return the cache entry of the kernel's chroot."""
    return debian.installed(PACKAGE, SUITE, MINIMUM)


def module(name: str) -> Path:
    """Return a module of the kernel."""
    return next((kernel().path / "root/usr/lib/uml/modules").rglob(f"{name}.ko"))


def make_network() -> None:
    """Make the pair of cards in this network namespace."""
    for command in (
        f"ip link set lo up; ip link add {CARD} type veth peer name {OTHER_END}",
        f"ip address add {OUTSIDE}/24 dev {CARD}",
        f"ip link set {CARD} up; ip link set {OTHER_END} up",
        # The machine reads whole packets with their checksums from a raw socket.
        *(f"ethtool -K {card} tx off gso off tso off gro off" for card in (CARD, OTHER_END)),
    ):
        subprocess.run(["sh", "-ec", command], check=True, stdout=DEVNULL)


class Machine:
    """One machine over many boots; `console` has what its kernel printed."""

    def __init__(self, project: Path, console: Path) -> None:
        self._project, self.console = project, console
        self._process: Process | None = None

    async def boot(self, variables: Mapping[str, object]) -> None:
        """Start it; `variables` are given to its first process."""
        fixed = {"GUEST_PROJECT": self._project, "GUEST_ADDRESS": INSIDE, "GUEST_OUTSIDE": OUTSIDE}
        given = [f"{name}={value}" for name, value in {**fixed, **variables}.items()]
        await self._start(
            *(f"mem={MEMORY}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/host", "ro"),
            *(*given, "init=/bin/sh", "--", str(self._project / "tests/machine/guest.sh")),
        )

    async def boot_from(self, image: Path, memory: str) -> None:
        """Start it from a disk of its own, which has a whole system."""
        await self._start(
            *(f"mem={memory}", f"ubd0=/host{image}", "root=/dev/ubda", "rw"),
            *("net.ifnames=0", "systemd.show_status=0"),
        )

    async def _start(self, *line: str) -> None:
        kernel_line = [
            *("/usr/bin/linux.uml", "con0=null,fd:1", "con=null", "ssl=null", "quiet"),
            *(f"vec0:transport=raw,ifname={OTHER_END},depth=128", *line),
        ]
        apart = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork",
                 "--kill-child=KILL")  # fmt: skip
        root = kernel().path / "root"
        with self.console.open("ab") as console:
            self._process = await asyncio.create_subprocess_exec(
                *(*apart, "sh", "-ec", ENTER, "sh", str(root), *kernel_line),
                stdin=DEVNULL,
                stdout=console,
                stderr=console,
            )

    def runs(self) -> bool:
        """Return whether it has power."""
        return self._process is not None and self._process.returncode is None

    async def cut(self) -> None:
        """Pull the plug."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def end(self, seconds: float) -> None:
        """Wait until it turns itself off; cut its power when it does not."""
        assert self._process is not None
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            await self.cut()
