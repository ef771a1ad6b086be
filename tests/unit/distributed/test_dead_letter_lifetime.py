"""Dead letters in maintenance: discarded after their lifetime, gone over by one process at a
time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from postroad.distributed.maintenance.row_maintenance import DEAD_LETTER_PASS_INTERVAL
from postroad.domain.queues.selection import Selector
from postroad.errors import ClockSkew, PostroadError
from support.in_memory_cluster import Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Stopped, at

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
WINDOW = timedelta(hours=1)
"""Of slices: months of shorter ones would only cost time here."""


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    cluster = InMemoryCluster(window=WINDOW)
    yield cluster
    await cluster.close()


async def maintenance(cluster: InMemoryCluster, process: Process, rounds: int) -> None:
    for _ in range(rounds):
        await process.queue.maintain()
        await cluster.pass_time(DEAD_LETTER_PASS_INTERVAL)


async def test_dead_letter_is_discarded_with_its_bytes_after_its_lifetime(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.give_up(process, "old")
    await cluster.pass_time(29 * DAY)
    await cluster.give_up(process, "young")
    await maintenance(cluster, process, 2)
    cluster.check_nothing_is_left(["old", "young"])

    await cluster.pass_time(DAY)
    await maintenance(cluster, process, 2)

    cluster.check_nothing_is_left(["young"])


@pytest.mark.parametrize("fault", [Fault.STOP_AFTER, Fault.AWAY, Fault.ANSWER_LOST])
async def test_expiry_that_stops_at_any_step_is_finished_by_another_process(fault: Fault) -> None:
    for number in range(16):
        cluster = InMemoryCluster(window=WINDOW)
        process, victim = await cluster.start(), await cluster.start()
        await cluster.give_up(process, "mail")
        await cluster.pass_time(31 * DAY)
        victim.fail(at(number, fault))
        with suppress(Stopped, PostroadError):
            await victim.queue.maintain()
        await cluster.pass_time(DEAD_LETTER_PASS_INTERVAL)

        await maintenance(cluster, process, 4)
        await cluster.audit()

        assert await cluster.recover() == []
        cluster.check_nothing_is_left()
        await cluster.close()


async def test_dead_letter_dated_by_a_wrong_clock_lives_as_long_as_others(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.give_up(process, "mail")
    [(key, dead_letter)] = cluster.tables.dead_letters.items()
    cluster.tables.dead_letters[key] = replace(dead_letter, died_at=dead_letter.died_at - 365 * DAY)
    await maintenance(cluster, process, 2)
    cluster.check_nothing_is_left(["mail"])

    await cluster.pass_time(31 * DAY)
    await maintenance(cluster, process, 2)

    cluster.check_nothing_is_left()


async def test_process_with_a_wrong_clock_discards_nothing(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.give_up(process, "mail")
    await cluster.pass_time(DAY)
    ahead = await cluster.start(skew=40 * DAY)

    with suppress(ClockSkew):
        await ahead.queue.maintain()

    cluster.check_nothing_is_left(["mail"])


@pytest.mark.parametrize("operation", ["rewrite_dead_letter", "insert", "publish"])
async def test_dead_letter_whose_requeue_stopped_half_way_is_requeued_not_discarded(
    cluster: InMemoryCluster, process: Process, operation: str
) -> None:
    await cluster.give_up(process, "mail")
    await cluster.pass_time(31 * DAY)
    victim = await cluster.start()
    victim.faults.plan = lambda step: Fault.STOP_AFTER if step.operation == operation else None
    with pytest.raises(Stopped):
        await victim.queue.requeue(Selector.all())
    await cluster.pass_time(3 * MINUTE)

    await maintenance(cluster, process, 2)

    assert await cluster.recover() == ["mail"]


def passes(*processes: Process) -> list[int]:
    """Return how often each went over the dead letters."""
    return [
        sum(step.operation == "dead_letters" for step in each.faults.steps) for each in processes
    ]


def without_audits(*processes: Process) -> None:
    """An audit and a cleanup read the dead letters too."""

    async def nothing() -> int:
        return 0

    for each in processes:
        each.queue._maintenance._audit._due = timedelta.max
        each.queue._maintenance._cleanup.run = nothing  # type: ignore[method-assign]


async def test_one_process_goes_over_the_dead_letters_and_another_when_it_is_gone(
    cluster: InMemoryCluster, process: Process
) -> None:
    other = await cluster.start()
    processes = (process, other)
    without_audits(*processes)
    for _ in range(12):
        for each in processes:
            await each.queue.maintain()
        await cluster.pass_time(MINUTE)
    assert passes(*processes) == [2, 0]

    await cluster.pass_time(DEAD_LETTER_PASS_INTERVAL)
    await other.queue.maintain()

    assert passes(other) == [1]


async def test_pass_that_took_long_is_repeated_after_ten_times_as_long(
    cluster: InMemoryCluster, process: Process
) -> None:
    async def slow() -> None:
        await cluster.pass_time(5 * MINUTE)

    process.faults.before = Before("dead_letters", slow)
    other = await cluster.start()
    without_audits(process, other)
    await process.queue.maintain()
    await cluster.pass_time(40 * MINUTE)
    for each in (process, other):
        await each.queue.maintain()
    assert passes(process, other) == [1, 0]

    await cluster.pass_time(15 * MINUTE)
    await process.queue.maintain()

    assert passes(process) == [2]
