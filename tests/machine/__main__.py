"""`python -m machine`: cuts the power of a machine that takes and delivers mail, and counts.

`make test-machine`. Needs root on Debian.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from machine import uml
from machine.accounts import Verdict, judge
from machine.disk import Disk
from machine.unsynced import SPARED
from machine.world import World
from stack import packages
from stack.errors import StackError, tail
from stack.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = ("debootstrap", "util-linux", "iproute2", "ethtool", "e2fsprogs")
APART = "POSTROAD_MACHINE_APART"
DISK_BYTES = 1 << 30
SESSIONS, CLIENTS = 20, 8
MAILS_OF_A_ROUND = 40
"""Acknowledged mails of a round before its power may go."""

MAX_REQUESTS = 120
"""Writes and flushes of the disk after these, at most, before the power goes."""


async def run(cuts: int, seed: int, undone: str, *, drops: bool, minutes: float) -> Verdict:
    """Boot and cut; then boot once more and judge. Begins no round after `minutes`."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="postroad-machine-") as temporary:
        image, console = Path(temporary) / "disk", Path(temporary) / "console"
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-b", "4096", "-F", image], check=True)
        disk, world = Disk(image, chance), World(chance)
        machine = uml.Machine(ROOT, console)
        try:
            return await _run(machine, disk, world, chance, cuts, undone, drops, minutes)
        except (TimeoutError, OSError) as error:
            raise StackError(f"{type(error).__name__} {error}\n{tail(console, 30)}") from error
        finally:
            await machine.cut()
            disk.close()


async def _run(
    machine: uml.Machine,
    disk: Disk,
    world: World,
    chance: random.Random,
    cuts: int,
    undone: str,
    drops: bool,
    minutes: float,
) -> Verdict:
    hop = await asyncio.start_server(world.take, uml.OUTSIDE, 0)
    variables = {
        "GUEST_MODULE": uml.module("nbd"),
        "GUEST_DISK": await disk.serve(uml.OUTSIDE),
        "GUEST_SIZE": disk.size,
        "GUEST_SINK": hop.sockets[0].getsockname()[1],
        "GUEST_SESSIONS": SESSIONS,
        "GUEST_UNDONE": undone,
    }
    deadline = time.monotonic() + minutes * 60
    for number in range(cuts):
        if time.monotonic() > deadline:
            print(f"the time is over after {number} cuts", flush=True)
            break
        world.round = number
        begin = time.monotonic()
        await machine.boot({**variables, "GUEST_TASK": "mail"})
        await _load(machine, disk, world, chance)
        await machine.cut()
        disk.cut(drops=drops)
        ledger = world.ledger
        print(
            f"cut {number + 1}: {len(ledger.acknowledged)} acknowledged,"
            f" {len(ledger.deliveries)} delivered, {disk.flushes} flushes,"
            f" {disk.dropped} blocks dropped; {time.monotonic() - begin:.0f} s",
            flush=True,
        )
    waiting = await _waiting(machine, variables)
    return judge(world.ledger, waiting, SESSIONS)


async def _load(machine: uml.Machine, disk: Disk, world: World, chance: random.Random) -> None:
    """Let the clients send until the power goes."""
    senders = [asyncio.create_task(world.send(uml.INSIDE, 2525)) for _ in range(CLIENTS)]
    already = len(world.ledger.acknowledged)
    try:
        async with asyncio.timeout(uml.BOOT_SECONDS):
            while len(world.ledger.acknowledged) < already + MAILS_OF_A_ROUND:
                if not machine.runs():
                    raise TimeoutError("the machine turned itself off")
                await asyncio.sleep(0.02)
            disk.fail_after(chance.randint(1, MAX_REQUESTS))
            await disk.failed.wait()
        await machine.cut()
    finally:
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)


async def _waiting(machine: uml.Machine, variables: dict[str, object]) -> set[str]:
    """Boot once more and read what waits."""
    received: list[bytes] = []
    ended = asyncio.Event()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(-1))
        writer.close()
        ended.set()

    server = await asyncio.start_server(receive, uml.OUTSIDE, 0)
    port = server.sockets[0].getsockname()[1]
    await machine.boot({**variables, "GUEST_TASK": "list", "GUEST_SINK": port})
    await asyncio.wait_for(ended.wait(), uml.BOOT_SECONDS)
    await machine.end(20)
    *lines, code = received[0].splitlines() or [b"no answer"]
    if code != b"0":
        raise StackError(f"the store cannot be read: {code.decode()}\n{tail(machine.console, 30)}")
    views = [json.loads(line) for line in lines]
    return {view["sender"].partition("@")[0] for view in views}


def main(arguments: Sequence[str]) -> int:
    """Run the cuts; returns 0 when nothing was lost and every repetition is explained."""
    parser = argparse.ArgumentParser(prog="make test-machine", description=__doc__)
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drops", action="store_true", help="the disk drops unflushed writes")
    parser.add_argument("--undone", choices=("nothing", *SPARED), default="nothing")
    parser.add_argument("--minutes", type=float, default=60, help="begin no round after so long")
    options = parser.parse_args(arguments)
    try:
        if os.geteuid() != 0:
            raise StackError("a machine of its own needs root: namespaces, and a raw socket")
        packages.ensure(DEBIAN, Progress())
        if APART not in os.environ:
            uml.kernel().ensure(Progress())
            own = ("unshare", "--net", sys.executable, "-m", "machine", *arguments)
            os.execvpe(own[0], own, os.environ | {APART: "yes"})
        uml.make_network()
        verdict = asyncio.run(
            run(options.cuts, options.seed, options.undone, drops=options.drops,
                minutes=options.minutes)
        )  # fmt: skip
    except StackError as error:
        print(f"machine: {error}", file=sys.stderr)
        return 2
    print(verdict)
    for line in (*(f"lost: {mail}" for mail in sorted(verdict.lost)[:20]), *verdict.unexplained):
        print(line)
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
