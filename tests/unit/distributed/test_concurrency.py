"""A bulk operation bears a view that does not answer: each mail is tried again and counted once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from postroad.distributed.engine.timing import TRIES
from postroad.domain.queues.selection import Selector
from postroad.errors import ViewUnavailable
from support.in_memory_cluster import LONG, InMemoryCluster, Process, every_other
from support.memory.fault_injection import Fault, Step

ALL = Selector.all()
MAILS = ("a", "b", "c", "d")


async def hold(cluster: InMemoryCluster, process: Process) -> int:
    work = asyncio.ensure_future(process.queue.hold(ALL))
    assert await cluster.outcome(work, LONG)
    return work.result()


@pytest.mark.parametrize("operation", ["end", "insert", "mark_published"])
@pytest.mark.parametrize("fault", [Fault.AWAY, Fault.ANSWER_LOST])
async def test_step_that_times_out_is_tried_again_and_its_mail_counted_once(
    cluster: InMemoryCluster, process: Process, operation: str, fault: Fault
) -> None:
    await cluster.enqueue(process, *MAILS)
    process.faults.plan = every_other(operation, fault)

    assert await hold(cluster, process) == len(MAILS)

    live = cluster.tables.live()
    assert sorted(entry.envelope.name or "" for entry in live) == sorted(MAILS)
    assert all(entry.held for entry in live)


@pytest.mark.parametrize("mails", [MAILS[:1], MAILS], ids=["alone", "together"])
@pytest.mark.parametrize("fault", [Fault.AWAY, Fault.ANSWER_LOST])
async def test_removal_that_times_out_is_tried_again_and_counts_each_mail_once(
    cluster: InMemoryCluster, process: Process, mails: tuple[str, ...], fault: Fault
) -> None:
    await cluster.enqueue(process, *mails)
    process.faults.plan = every_other("end", fault)

    work = asyncio.ensure_future(process.queue.remove(ALL))
    assert await cluster.outcome(work, LONG)

    assert work.result() == len(mails)
    assert cluster.tables.live() == []
    assert cluster.blobs == {}


async def test_mail_that_ended_meanwhile_is_not_counted(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The ending whose answer was lost was not carried out, and another one was first."""
    await cluster.enqueue(process, "a")
    other = await cluster.start()
    asked = [0]

    async def before(step: Step) -> None:
        asked[0] += step.operation == "end"
        if step.operation == "end" and asked[0] == 2:
            assert await other.queue.remove(ALL) == 1

    process.faults.before = before
    process.faults.plan = every_other("end", Fault.AWAY)

    assert await hold(cluster, process) == 0
    assert cluster.tables.live() == []


async def test_removal_of_another_process_is_not_counted(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The transaction whose answer was lost was not carried out, and another process was first."""
    await cluster.enqueue(process, "a", "b")
    other = await cluster.start(skew=timedelta(milliseconds=1))
    asked = [0]

    async def before(step: Step) -> None:
        asked[0] += step.operation == "end"
        if step.operation == "end" and asked[0] == 2:
            assert await other.queue.remove(Selector(name="a")) == 1

    process.faults.before = before
    process.faults.plan = every_other("end", Fault.AWAY)

    work = asyncio.ensure_future(process.queue.remove(ALL))
    assert await cluster.outcome(work, LONG)
    assert work.result() == 1
    assert cluster.tables.live() == []


async def test_server_that_stays_away_ends_it_within_bounds(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "a")
    process.faults.plan = lambda step: Fault.AWAY if step.operation == "end" else None
    first, began = len(process.faults.steps), cluster.clock.elapsed()

    with pytest.raises(ViewUnavailable):
        await hold(cluster, process)

    assert [each.operation for each in process.faults.steps[first:]].count("end") == TRIES
    assert cluster.clock.elapsed() - began < timedelta(minutes=1)
