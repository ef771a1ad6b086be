"""`python -m machine.fresh`: README's first commands on a machine that was just installed.

A Debian 12 with systemd and cgroup v2, as User Mode Linux: by root, and by a user who may not be
root. Its packages come from the registries that this machine uses. Needs root on Debian.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from machine import fresh_disk, uml
from machine.first_steps import STEPS, complaints, read, script
from stack import packages
from stack.errors import StackError
from stack.progress import Progress
from stack.server import POLL_SECONDS

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = (
    *("debootstrap", "util-linux", "iproute2", "ethtool", "e2fsprogs", "slirp4netns", "nftables"),
)
FOLDER = "POSTROAD_MACHINE_FOLDER"
"""Set in the network namespace of the machine: the folder with its disk."""

MEMORY = "4G"
MAX_MAPPINGS = 1_000_000
MAPPINGS = Path("/proc/sys/vm/max_map_count")
WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Ends a process when this one ends, however it ends."""

LEAVE = (
    "table ip machine { chain leave { type nat hook postrouting priority 100;"
    " oifname tap0 masquerade\n}\n}"
)


def run(minutes: float) -> str:
    """Make the machine, let it take the steps, and return what its console showed.

    Raises:
        StackError: it did not run.
    """
    for entry in (uml.kernel(), fresh_disk.system()):
        entry.ensure(Progress())
    with tempfile.TemporaryDirectory(prefix="postroad-machine-", dir="/var/tmp") as temporary:
        folder = Path(temporary)
        fresh_disk.make(folder / "disk", ROOT, script(STEPS))
        with _room_for_pages():
            code = _apart(folder, minutes)
        if code:
            raise StackError(f"the machine ended with {code}")
        return (folder / "console").read_text(errors="replace")


@contextlib.contextmanager
def _room_for_pages() -> Iterator[None]:
    """Let a process of this machine have a mapping for each page of one of that machine: the usual
    65,530 are not enough for pip."""
    before = MAPPINGS.read_text()
    MAPPINGS.write_text(f"{max(int(before), MAX_MAPPINGS)}\n")
    try:
        yield
    finally:
        MAPPINGS.write_text(before)


def _apart(folder: Path, minutes: float) -> int:
    """Run the machine in a network namespace whose traffic leaves as this machine's."""
    own = ("unshare", "--net", sys.executable, "-m", "machine.fresh", "--minutes", str(minutes))
    inside = subprocess.Popen((*WITH_US, *own), env=os.environ | {FOLDER: str(folder)})
    here = Path("/proc/self/ns/net").readlink()
    while inside.poll() is None and Path(f"/proc/{inside.pid}/ns/net").readlink() == here:
        time.sleep(POLL_SECONDS)
    network = ("--configure", "--mtu=65520", "--disable-host-loopback", str(inside.pid), "tap0")
    with subprocess.Popen(
        (*WITH_US, "slirp4netns", *network), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as slirp:
        try:
            return inside.wait()
        finally:
            inside.kill()
            slirp.terminate()


async def _boot(folder: Path, minutes: float) -> None:
    """In the namespace: let the machine run until it turns itself off, or time is over."""
    machine = uml.Machine(ROOT, folder / "console")
    await machine.boot_from(folder / "disk", MEMORY)
    try:
        await machine.end(minutes * 60)
    finally:
        await machine.cut()


def _make_network(seconds: float = 20) -> None:
    """Join the machine's card to the outside.

    Raises:
        StackError: slirp4netns gave no card.
    """
    question = ["ip", "-4", "address", "show", "tap0"]
    deadline = time.monotonic() + seconds
    while b"inet " not in subprocess.run(question, capture_output=True, check=False).stdout:
        if time.monotonic() > deadline:
            raise StackError("slirp4netns gave no network card")
        time.sleep(POLL_SECONDS)
    uml.make_network()
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
    subprocess.run(["nft", LEAVE], check=True)


def _judge(console: str) -> int:
    """Print how the steps ended; return 0 when each did as it must."""
    ended = read(console, STEPS)
    for each in ended:
        print(f"{each.step.user}: {each.step.command}: {each.code}, {each.seconds} s")
    wrong = complaints(ended, STEPS)
    if wrong:
        print(console[-4000:], file=sys.stderr)
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if wrong else 0


def main(arguments: Sequence[str]) -> int:
    """Take the steps; returns 0 when each ended as it must."""
    parser = argparse.ArgumentParser(prog="python -m machine.fresh", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="power is cut after so long")
    parser.add_argument("--console", type=Path, help="a file that gets the machine's output")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was changed is put back
    try:
        if FOLDER in os.environ:
            _make_network()
            asyncio.run(_boot(Path(os.environ[FOLDER]), options.minutes))
            return 0
        if os.geteuid() != 0:
            raise StackError("a machine of its own needs root: namespaces, and a raw socket")
        packages.ensure(DEBIAN, Progress())
        console = run(options.minutes)
    except (StackError, OSError, subprocess.CalledProcessError) as error:
        print(f"machine: {error}", file=sys.stderr)
        return 2
    if options.console:
        options.console.write_text(console)
    return _judge(console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
