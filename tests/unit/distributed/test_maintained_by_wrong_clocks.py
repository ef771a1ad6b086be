"""Maintenance by a process whose clock is far off judges waiting mail by the view's time."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest

from postroad.distributed.maintenance.row_maintenance import ROW_PASS_INTERVAL
from postroad.domain.queues.lost_messages import STEADY
from postroad.domain.queues.selection import Selector
from postroad.errors import ClockSkew
from postroad.telemetry import metrics
from support.in_memory_cluster import NAME, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Stopped

ALL = Selector.all()
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


async def maintain(process: Process) -> None:
    """Do a round, of which the steps that need a right clock are refused."""
    with suppress(ClockSkew):
        await process.queue.maintain()


def failures() -> float:
    return float(metrics.MAINTENANCE_ERRORS.labels(NAME.namespace, NAME.name)._value.get())


async def released_by_halves(cluster: InMemoryCluster, process: Process, after: str) -> None:
    """Let a process end in the release of a mail, which is due three hours after it was queued."""
    await cluster.enqueue(process, "mail", delay=3 * HOUR.total_seconds())
    await process.queue.hold(ALL)
    victim = await cluster.start()
    victim.fail(lambda step: Fault.STOP_AFTER if step.operation == after else None)
    with pytest.raises(Stopped):
        await victim.queue.release(ALL)


async def test_a_clock_that_is_days_ahead_rolls_no_mail_forward(
    cluster: InMemoryCluster, process: Process
) -> None:
    ahead = await cluster.start(skew=8 * DAY)
    await cluster.enqueue(process, "mail", delay=10**6)
    before = failures()

    await maintain(ahead)

    assert failures() == before


async def test_a_clock_that_is_ahead_leaves_a_replacement_to_the_process_that_makes_it(
    cluster: InMemoryCluster, process: Process
) -> None:
    ahead = await cluster.start(skew=HOUR)
    await released_by_halves(cluster, process, after="end")
    before = failures()

    await maintain(ahead)

    assert failures() == before


async def test_a_clock_that_is_behind_finishes_what_stopped_long_ago(
    cluster: InMemoryCluster, process: Process
) -> None:
    behind = await cluster.start(skew=-HOUR)
    await released_by_halves(cluster, process, after="insert")
    await cluster.pass_time(HOUR)

    await maintain(behind)

    early = await cluster.deliver(process, within=2 * HOUR - MINUTE)
    on_time = await cluster.deliver(process, within=2 * MINUTE)
    assert (early, on_time) == ([], ["mail"])


async def test_a_clock_that_is_behind_inserts_no_row_that_is_too_late(
    cluster: InMemoryCluster, process: Process
) -> None:
    behind = await cluster.start(skew=-HOUR)
    await released_by_halves(cluster, process, after="end")
    await cluster.pass_time(HOUR)
    rows = dict(cluster.tables.rows)

    await maintain(behind)

    assert cluster.tables.rows == rows
    await process.queue.maintain()
    assert await cluster.deliver(process, within=2 * HOUR + MINUTE) == ["mail"]


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
async def test_a_process_with_a_wrong_clock_keeps_no_other_from_giving_new_messages(
    cluster: InMemoryCluster, process: Process, skew: timedelta
) -> None:
    wrong = await cluster.start(skew=skew)
    await cluster.enqueue(process, "mail")
    cluster.broker.lose_everything()

    for _ in range(STEADY):
        await cluster.pass_time(ROW_PASS_INTERVAL)
        await maintain(wrong)
        await process.queue.maintain()

    assert await cluster.deliver(process, MINUTE) == ["mail"]


async def test_a_machine_whose_clock_was_set_right_after_a_pause_inserts_no_row_that_is_too_late(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The view's time as it reckons it is behind until it reads that anew."""
    paused = await cluster.start()
    await cluster.enqueue(process, "mail")
    (key,) = cluster.tables.rows
    engine = paused.queue._engine
    await cluster.pass_time(HOUR)
    assert engine.is_overdue(key)

    paused.clock.pause(HOUR)
    assert not engine.is_overdue(key), "as long as the machine does not know it"
    paused.clock.skew = HOUR
    assert engine.is_overdue(key)
