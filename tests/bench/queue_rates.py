"""How fast mails enter and leave, beside the bare drivers (the ceiling) and beside James' figures.

Ours and the ceiling run alternately; rates are medians of rounds, latencies quantiles over all
rounds. James was measured on its own on the same kind of machine; his CPU is the JVM's and the
servers'.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from bench import cpu
from bench.bare_mail import BUCKETS, HOUR, bare_mail
from bench.queue_setup import BenchServers, queue_names
from bench.results import Result, compared, percentile, progress
from postroad import Mail, open_queue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.ports.mail_queue import Item, MailQueue

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
MAX_MAILS = int(os.environ.get("BENCH_MAILS", "3000"))
MAILS = {1: MAX_MAILS // 10, 16: MAX_MAILS // 2, 64: MAX_MAILS}
"""Mails of a round for each number in flight."""
SIZES = {"2 kB": 2_000, "50 kB": 50_000}
CEILING = "bare pika, cassandra-driver, obstore"
JAMES = "James 3.8.1, measured on this kind of machine"
JAMES_FIGURES = {
    ("enqueue", "2 kB, 64 in flight"): (540.0, 3.2),
    ("dequeue", "2 kB, 64 in flight"): (714.0, 2.6),
    ("enqueue", "50 kB, 64 in flight"): (498.0, None),
    ("dequeue", "50 kB, 64 in flight"): (695.0, None),
    ("enqueue", "2 kB, 1 in flight"): (310.0, None),
    ("dequeue", "2 kB, 1 in flight"): (347.0, None),
}
"""Mails a second, and milliseconds of CPU a mail in all processes."""


class Candidate(Protocol):
    """What is measured."""

    async def enter(self) -> None:
        """Bring one mail in."""
        ...

    async def leave(self, mails: int, in_flight: int, latencies: list[float]) -> None:
        """Take so many mails out."""
        ...


class Ours:
    """A queue as a program uses it."""

    def __init__(self, queue: MailQueue, content: bytes) -> None:
        self.queue = queue
        self._content = content
        self._mail = Mail("a@example.org", ("b@example.net",), content, name="measured")

    async def enter(self) -> None:
        await self.queue.enqueue(self._mail)

    async def leave(self, mails: int, in_flight: int, latencies: list[float]) -> None:
        async def timed(item: Item) -> None:
            began = time.perf_counter()
            await self.deliver(item)
            latencies.append(time.perf_counter() - began)

        async with asyncio.TaskGroup() as deliveries:
            left = mails
            async for item in self.queue.dequeue(in_flight):
                deliveries.create_task(timed(item))
                left -= 1
                if not left:
                    break

    async def deliver(self, item: Item) -> None:
        """Do what a worker does, but for the transmission."""
        assert await item.content() == self._content
        await item.done()


@dataclass
class Watch:
    """One step of one candidate. Latencies in seconds. `client` is whose CPU counts beside the
    servers', None: this process."""

    client: int | None = None
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    spent: cpu.Spent = field(default_factory=cpu.Spent)

    async def time(self, mails: int, work: Callable[[list[float]], Awaitable[None]]) -> None:
        before, began = cpu.used(self.client), time.perf_counter()
        await work(self.latencies)
        self.rates.append(mails / (time.perf_counter() - began))
        self.spent.add(before, cpu.used(self.client), mails)


@asynccontextmanager
async def ours(where: BenchServers, content: bytes) -> AsyncIterator[Ours]:
    """Open a queue of its own."""
    async with queue_names(where) as name:
        opening = open_queue(
            f"distributed://{name}",
            create=True,
            configuration=ViewConfiguration(HOUR, BUCKETS),
            settings=where.settings,
        )
        async with opening as queue:
            yield Ours(queue, content)


async def measure(where: BenchServers) -> list[Result]:
    """Measure every size with every number in flight."""
    results: list[Result] = []
    for size, length in SIZES.items():
        content = b"Subject: measured\r\n\r\n" + os.urandom(length // 2).hex().encode()
        for in_flight, mails in MAILS.items():
            case = f"{size}, {in_flight} in flight"
            async with ours(where, content) as mine, bare_mail(where, content) as bare:
                found = await _compare(case, mine, bare, in_flight, mails)
            progress(found)
            results += found
    return results


async def _compare(
    case: str, mine: Candidate, bare: Candidate, in_flight: int, mails: int
) -> list[Result]:
    watches = {(who, step): Watch() for who in ("ours", "bare") for step in ("enqueue", "dequeue")}
    for number in range(ROUNDS):
        for who, candidate in (("ours", mine), ("bare", bare))[:: 1 - 2 * (number % 2)]:
            await watches[who, "enqueue"].time(mails, partial(enter, candidate, in_flight, mails))
            await watches[who, "dequeue"].time(mails, partial(candidate.leave, mails, in_flight))
    return [
        result
        for step in ("enqueue", "dequeue")
        for result in _results(step, case, watches["ours", step], watches["bare", step])
    ]


async def enter(candidate: Candidate, in_flight: int, mails: int, latencies: list[float]) -> None:
    numbers = iter(range(mails))

    async def worker() -> None:
        for _ in numbers:
            began = time.perf_counter()
            await candidate.enter()
            latencies.append(time.perf_counter() - began)

    await asyncio.gather(*(worker() for _ in range(in_flight)))


def _results(step: str, case: str, mine: Watch, bare: Watch) -> list[Result]:
    found = [compared(step, case, "mails/s", mine.rates, CEILING, bare.rates)]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        quantiles = [[1000 * percentile(each.latencies, share)] for each in (mine, bare)]
        found.append(
            compared(
                f"{step} {name}",
                case,
                "ms",
                quantiles[0],
                CEILING,
                quantiles[1],
                less_is_better=True,
            )
        )
    for label, names in (("CPU of this process", (cpu.OURSELVES,)), ("CPU of all processes", ())):
        costs = [[each.spent.milliseconds(*names)] for each in (mine, bare)]
        found.append(
            compared(
                f"{step}, {label}",
                case,
                "ms/mail",
                costs[0],
                CEILING,
                costs[1],
                less_is_better=True,
            )
        )
    rate, cost = JAMES_FIGURES.get((step, case), (None, None))
    if rate is not None:
        found.append(compared(step, case, "mails/s", mine.rates, JAMES, [rate]))
    if cost is not None and len(mine.spent.seconds) > 1:
        all_of_it = [mine.spent.milliseconds()]
        found.append(
            compared(
                f"{step}, CPU of all processes",
                case,
                "ms/mail",
                all_of_it,
                JAMES,
                [cost],
                less_is_better=True,
            )
        )
    return found
