"""James' mail queue beside ours: in the same run, on the same servers, alternately.

James 3.8.1 runs from its published jars in a JVM of 1 GiB (`james/` says how he is set up), with
a keyspace and a bucket of his own. Both enqueue and dequeue the same mails in rounds, and who is
first changes from round to round. Before, he handles BENCH_JAMES_WARM_UP mails again and again
until that makes him no faster: the JVM compiles what runs often. Then BENCH_JAMES_QUEUED mails are
enqueued on either side, looked at and purged. His browse fetches the bytes of what it shows, ours
does not: each is what an administrator gets. Latencies are of enqueueing only: James hands a mail
out when he has its bytes, we before.
"""

from __future__ import annotations

import math
import os
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from bench import cpu, james_harness
from bench.james_harness import James
from bench.queue_backlog import count_of, timed
from bench.queue_rates import MAILS, ROUNDS, Ours, Watch, enter, ours
from bench.queue_setup import BenchServers, fresh_name, fresh_servers
from bench.results import Result, compared, percentile, progress

QUEUED = int(os.environ.get("BENCH_JAMES_QUEUED", "10000"))
WARM_UP = int(os.environ.get("BENCH_JAMES_WARM_UP", "3000"))
MIN_WARM_UPS, MAX_WARM_UPS, STILL_BETTER = 3, 8, 0.9
SIZE = 2000
HEADER = b"Subject: measured\r\n\r\n"
CONTENT = HEADER + os.urandom(SIZE).hex().encode()[: SIZE - len(HEADER)]
IN_FLIGHT = 64
FIRST = 100
PEER = "James 3.8.1, in the same run"
Act = Callable[[], Awaitable[Any]]


async def measure(where: BenchServers) -> list[Result]:
    """Measure rates with every number in flight, then one long queue."""
    results: list[Result] = []
    async with fresh_servers() as theirs, james_harness.running(theirs) as james:
        await _warm_up(where, james)
        for in_flight, mails in MAILS.items():
            found = await _rates(where, james, in_flight, mails)
            progress(found)
            results += found
        found = await _long_queue(where, james)
        progress(found)
    return results + found


async def _warm_up(where: BenchServers, james: James) -> None:
    """Let him compile all that will be measured. Ours opens connections and prepares statements."""
    async with ours(where, CONTENT) as mine:
        await enter(mine, IN_FLIGHT, IN_FLIGHT, [])
        await mine.leave(IN_FLIGHT, IN_FLIGHT, [])
    async with james.queue(fresh_name(), IN_FLIGHT):
        best = math.inf
        for number in range(MAX_WARM_UPS):
            entered = await james.ask("enqueue", WARM_UP, SIZE, IN_FLIGHT)
            left = await james.ask("dequeue", WARM_UP, SIZE, IN_FLIGHT)
            seconds = entered["seconds"] + left["seconds"]
            print(f"James warms up: {2 * WARM_UP / seconds:.0f} steps/s", file=sys.stderr)
            if number + 1 >= MIN_WARM_UPS and seconds > STILL_BETTER * best:
                break
            best = min(best, seconds)
    async with james.queue(fresh_name(), IN_FLIGHT):
        await james.ask("enqueue", WARM_UP // 3, SIZE, IN_FLIGHT)
        for command in ("size", "browse", "clear"):
            await james.ask(command)


async def _rates(where: BenchServers, james: James, in_flight: int, mails: int) -> list[Result]:
    async def ask(command: str, latencies: list[float]) -> None:
        answer = await james.ask(command, mails, SIZE, in_flight)
        latencies += [each / 1e9 for each in answer["nanoseconds"]]

    async with ours(where, CONTENT) as mine, james.queue(fresh_name(), in_flight):
        steps = {
            ("ours", "enqueue"): (Watch(), partial(enter, mine, in_flight, mails)),
            ("ours", "dequeue"): (Watch(), partial(mine.leave, mails, in_flight)),
            ("theirs", "enqueue"): (Watch(james.pid), partial(ask, "enqueue")),
            ("theirs", "dequeue"): (Watch(james.pid), partial(ask, "dequeue")),
        }
        for number in range(ROUNDS):
            for who in _entries(number):
                for step in ("enqueue", "dequeue"):
                    watch, work = steps[who, step]
                    await watch.time(mails, work)
    case = f"2 kB, {in_flight} in flight"
    return [
        result
        for step in ("enqueue", "dequeue")
        for result in _results(step, case, steps["ours", step][0], steps["theirs", step][0])
    ]


def _entries(number: int) -> tuple[str, ...]:
    return ("ours", "theirs")[:: 1 - 2 * (number % 2)]


def _results(step: str, case: str, mine: Watch, other: Watch) -> list[Result]:
    found = [compared(step, case, "mails/s", mine.rates, PEER, other.rates)]
    for name, share in (("p50", 0.5), ("p99", 0.99)) if step == "enqueue" else ():
        quantiles = [[1000 * percentile(each.latencies, share)] for each in (mine, other)]
        found.append(_less(f"{step} {name}", case, "ms", *quantiles))
    groups = {"all processes": (), "the client": (cpu.OURSELVES,)}
    groups |= {name: (name,) for name in mine.spent.seconds if name != cpu.OURSELVES}
    for label, names in groups.items():
        costs = [[each.spent.milliseconds(*names)] for each in (mine, other)]
        found.append(_less(f"{step}, CPU of {label}", case, "ms/mail", *costs))
    return found


async def _long_queue(where: BenchServers, james: James) -> list[Result]:
    async with ours(where, CONTENT) as mine, james.queue(fresh_name(), IN_FLIGHT):
        await enter(mine, IN_FLIGHT, QUEUED, [])
        await james.ask("enqueue", QUEUED, SIZE, IN_FLIGHT)
        looks = {"ours": _looks(mine), "theirs": _his_looks(james)}
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for number in range(ROUNDS):
            for who in _entries(number):
                for measure, act in looks[who].items():
                    seconds, _ = await timed(act)
                    times[who, measure].append(seconds)
        # He is first: what we leave to be deleted in the background would disturb him.
        cleared, _ = await timed(partial(james.ask, "clear"))
        await _asked(james, 0, "size")
        purged, count = await timed(mine.queue.purge)
        assert count == QUEUED, count
    case = f"{QUEUED:,} mails"
    return [
        *(
            _less(measure, case, "s", times["ours", measure], times["theirs", measure])
            for measure in looks["ours"]
        ),
        _less("purge", case, "s", [purged], [cleared]),
    ]


def _looks(mine: Ours) -> dict[str, Act]:
    async def size() -> None:
        found = await mine.queue.size()
        assert found.size == QUEUED, found

    async def browse(most: int) -> None:
        assert await count_of(mine.queue.browse(), most) == most

    return {
        "size": size,
        f"browse, first {FIRST}": partial(browse, FIRST),
        "browse, all": partial(browse, QUEUED),
    }


def _his_looks(james: James) -> dict[str, Act]:
    return {
        "size": partial(_asked, james, QUEUED, "size"),
        f"browse, first {FIRST}": partial(_asked, james, FIRST, "browse", FIRST),
        "browse, all": partial(_asked, james, QUEUED, "browse"),
    }


async def _asked(james: James, expected: int, *words: object) -> None:
    answer = await james.ask(*words)
    assert answer["count"] == expected, answer


def _less(measure: str, case: str, unit: str, mine: list[float], other: list[float]) -> Result:
    return compared(measure, case, unit, mine, PEER, other, less_is_better=True)
