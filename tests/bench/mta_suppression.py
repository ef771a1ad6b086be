"""A suppression list of BENCH_SUPPRESSED addresses in a directory: what it costs to import, to
lengthen and to read, how long a look waits meanwhile, and what an MTA pays that looks at each
recipient, beside one without a list."""

from __future__ import annotations

import asyncio
import os
import random
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.results import Result, compared
from postroad import open_queue
from postroad.adapters.disk.suppression_list import FileSuppressionList
from postroad.domain.delivery.suppressed import token_of
from support.cpu_time import cpu_seconds
from support.sink import Sink
from support.small_mta import an_mta, send

ADDRESSES = int(os.environ.get("BENCH_SUPPRESSED", "1000000"))
MORE, LOOKS, MAILS, ROUNDS = 1000, 2000, 1000, 3
BETWEEN_LOOKS_SECONDS = 0.005
MAX_LOOK_SECONDS = 1.0
FEW_MIB = 256
"""Of memory, for a command."""

MIB = 2**20


class Cost(NamedTuple):
    """What a command cost. `longest_look`: the longest that another process waited for one."""

    seconds: float
    cpu_seconds: float
    resident_mib: float
    written_mib: float
    longest_look: float


async def measure(base: Path) -> list[Result]:
    """Fill a list by commands, then start an MTA over it beside one without."""
    store, plain = base / "suppressed", base / "plain"
    for each in (store, plain):
        async with open_queue(f"embedded://{each}", create=True):
            pass
    first, more = _file(base / "first", 1, ADDRESSES), _file(base / "more", 2, MORE)
    case = f"{ADDRESSES:,} addresses"
    done = {
        "import": await _command(store, "import", str(first)),
        "import of 1,000 more": await _command(store, "import", str(more)),
        "list": await _command(store, "list"),
    }
    results = []
    for name, cost in done.items():
        print(name, cost, file=sys.stderr)
        results += [
            _bounded(f"{name}: CPU", case, "s", cost.cpu_seconds, "a minute", 60),
            _bounded(f"{name}: memory", case, "MiB", cost.resident_mib, "the bound", FEW_MIB),
            _bounded(f"{name}: written", case, "MiB", cost.written_mib, "a MiB", 1),
            _bounded(
                f"{name}: a look", case, "s at most", cost.longest_look, "the bound",
                MAX_LOOK_SECONDS,
            ),
        ]  # fmt: skip
    results.append(_bounded("a look: CPU", case, "ms", await _look(store), "a millisecond", 1))
    return results + await _beside(base, case, store, plain)


def _bounded(measure: str, case: str, unit: str, value: float, bound: str, most: float) -> Result:
    return compared(measure, case, unit, [value], bound, [most], less_is_better=True)


def _file(file: Path, seed: int, count: int) -> Path:
    file.write_text("".join(f"{each}\n" for each in _addresses(seed, count)))
    return file


def _addresses(seed: int, count: int) -> Iterator[str]:
    chance = random.Random(seed)
    return (
        f"user{chance.randrange(10**9):09}.{number}@host{number % 5000}.example"
        for number in range(count)
    )


async def _command(store: Path, name: str, *arguments: str) -> Cost:
    """Run a command, and look meanwhile."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "postroad", "suppression", name),
        *("--queue", f"embedded://{store}", *arguments),
        stdout=asyncio.subprocess.DEVNULL,
    )
    ending = asyncio.ensure_future(process.wait())
    longest, resident, looked = 0.0, 0.0, _list_of(store)
    while not ending.done():
        asked = time.perf_counter()
        await looked.find("", [os.urandom(32)])
        longest = max(longest, time.perf_counter() - asked)
        resident = max(resident, _memory_mib(process.pid, "VmHWM"))
        await asyncio.sleep(BETWEEN_LOOKS_SECONDS)
    assert await ending == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(
        time.perf_counter() - began,
        cpu,
        resident,
        (after.ru_oublock - before.ru_oublock) * 512 / MIB,
        longest,
    )


def _list_of(store: Path) -> FileSuppressionList:
    return FileSuppressionList(store / "suppressed.sqlite")


async def _look(store: Path) -> float:
    """Return milliseconds of CPU for a look at one recipient, half of which are on the list."""
    chance, listed = random.Random(3), list(_addresses(1, min(ADDRESSES, 100_000)))
    tokens = [
        token_of(chance.choice(listed)) if number % 2 else os.urandom(32) for number in range(LOOKS)
    ]
    looked, before = _list_of(store), time.process_time()
    found = [await looked.find("", [each]) for each in tokens]
    spent = time.process_time() - before
    assert sum(map(len, found)) == LOOKS // 2
    return 1000 * spent / LOOKS


async def _beside(base: Path, case: str, store: Path, plain: Path) -> list[Result]:
    """Let an MTA with the list and one without deliver, in turns."""
    used = base / "used.yaml"
    used.write_text("suppression: {}\n")
    using = {"POSTROAD_WORKER_DELIVERY_FILE": str(used)}
    async with Sink() as sink:
        ours, our_port = await an_mta(base, store, sink.port, environment=using)
        theirs, their_port = await an_mta(base, plain, sink.port)
        cpu: dict[int, list[float]] = {ours.pid: [], theirs.pid: []}
        try:
            for number in range(ROUNDS):
                for each, port in ((ours, our_port), (theirs, their_port)):
                    spent = cpu_seconds([each.pid])
                    await _deliver(sink, port, number)
                    cpu[each.pid].append(1000 * (cpu_seconds([each.pid]) - spent) / MAILS)
            memory = [_memory_mib(each.pid, "VmRSS") for each in (ours, theirs)]
        finally:
            for each in (ours, theirs):
                await each.stop()
    less, peer = {"less_is_better": True}, "no list"
    return [
        compared("CPU of the MTA", case, "ms/mail", cpu[ours.pid], peer, cpu[theirs.pid], **less),
        compared("memory of the MTA", case, "MiB", memory[:1], peer, memory[1:], **less),
    ]


async def _deliver(sink: Sink, port: int, number: int) -> None:
    """Send mails by one client; return when the last one has arrived."""
    arrived = len(sink.mails)
    names = [f"n{number}-{each}" for each in range(MAILS)]
    assert len(await asyncio.to_thread(send, port, names)) == MAILS
    while len(sink.mails) < arrived + MAILS:
        await asyncio.sleep(0.05)


def _memory_mib(process: int, which: str) -> float:
    """Return what Linux has of a process' memory; 0 for one that has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(rf"{which}:\s*(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0
