"""`python -m machine.fresh`: README's first commands on a machine that was just installed.

A Debian 12 with systemd and cgroup v2, as User Mode Linux: by root, and by a user who may not be
root. Its packages come from the registries that this machine uses. Needs root on Debian.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
APART = "POSTROAD_MACHINE_APART"
WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Ends a process when this one ends, however it ends."""

MEMORY = "4G"
LEAVE = (
    "table ip machine { chain leave { type nat hook postrouting priority 100;"
    " oifname tap0 masquerade\n}\n}"
)


def apart(arguments: Sequence[str]) -> int:
    """Run this program in a network namespace whose traffic leaves as this machine's."""
    own = ("unshare", "--net", sys.executable, "-m", "machine.fresh", *arguments)
    inside = subprocess.Popen((*WITH_US, *own), env=os.environ | {APART: "yes"})
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


def make_network(seconds: float = 20) -> None:
    """Join the machine's card to the outside.

    Raises:
        StackError: slirp4netns gave no card.
    """
    deadline = time.monotonic() + seconds
    while "inet " not in _shown("ip", "-4", "address", "show", "tap0"):
        if time.monotonic() > deadline:
            raise StackError("slirp4netns gave no network card")
        time.sleep(POLL_SECONDS)
    uml.make_network()
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
    subprocess.run(["nft", LEAVE], check=True)


def _shown(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


async def take(minutes: float) -> str:
    """Boot, take the steps, and return what the console showed."""
    with tempfile.TemporaryDirectory(prefix="postroad-machine-", dir="/var/tmp") as temporary:
        image, console = Path(temporary) / "disk", Path(temporary) / "console"
        fresh_disk.make(image, ROOT, script(STEPS))
        machine = uml.Machine(ROOT, console)
        await machine.boot_from(image, MEMORY)
        try:
            await machine.end(minutes * 60)
        finally:
            await machine.cut()
        return console.read_text(errors="replace")


def main(arguments: Sequence[str]) -> int:
    """Take the steps; returns 0 when each ended as it must."""
    parser = argparse.ArgumentParser(prog="python -m machine.fresh", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="power is cut after so long")
    parser.add_argument("--console", type=Path, help="a file that gets the machine's output")
    options = parser.parse_args(arguments)
    try:
        if os.geteuid() != 0:
            raise StackError("a machine of its own needs root: namespaces, and a raw socket")
        packages.ensure(DEBIAN, Progress())
        if APART not in os.environ:
            for entry in (uml.kernel(), fresh_disk.system()):
                entry.ensure(Progress())
            return apart(arguments)
        make_network()
        console = asyncio.run(take(options.minutes))
    except (StackError, OSError, subprocess.CalledProcessError) as error:
        print(f"machine: {error}", file=sys.stderr)
        return 2
    if options.console:
        options.console.write_text(console)
    ended = read(console, STEPS)
    for each in ended:
        print(f"{each.step.user}: {each.step.command}: {each.code}, {each.seconds} s")
    wrong = complaints(ended, STEPS)
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    if wrong:
        print(console[-4000:], file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
