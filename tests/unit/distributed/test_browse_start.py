"""Browse start moves behind endings without disturbing them, and slices behind a mail that waits
are marked drained by what the marks, the configuration and the clocks show then."""

from __future__ import annotations

import asyncio
import gc
from datetime import datetime, timedelta

import pytest

from postroad.distributed.maintenance.browse_start import BEYOND
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.selection import Selector
from postroad.errors import ConfigurationStale
from postroad.ports.view import Effective
from support.in_memory_cluster import WINDOW, Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


async def behind_a_waiting_mail(
    cluster: InMemoryCluster, process: Process, *names: str
) -> list[datetime]:
    """Enqueue a mail that waits, and others in slices of their own; return these slices, closed."""
    await cluster.enqueue(process, "waits", delay=10**6)
    known, slices = set(cluster.tables.rows), []
    for name in names:
        await cluster.pass_time(WINDOW)
        await cluster.enqueue(process, name, delay=10**6)
        (key,) = cluster.tables.rows.keys() - known
        known.add(key)
        slices.append(key.slice_start)
    await cluster.pass_time(WINDOW + 3 * MINUTE)
    return slices


def drained(cluster: InMemoryCluster) -> set[datetime]:
    return {start for start, closed in cluster.tables.slices.items() if closed.drained}


async def test_an_advance_that_the_view_does_not_answer_disturbs_nothing() -> None:
    """The next ending draws again."""
    cluster = InMemoryCluster(pace=1)
    process = await cluster.start()
    await cluster.enqueue(process, "first", "second")
    await cluster.pass_time(4 * WINDOW)
    before = cluster.tables.limits.browse_start
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, each: unhandled.append(each))
    process.fail(lambda step: Fault.AWAY if step.operation == "advance" else None)

    assert await process.queue.remove(Selector(name="first")) == 1
    await cluster.pass_time(SECOND)
    gc.collect()

    assert unhandled == []
    assert cluster.tables.limits.browse_start == before
    process.fail(lambda step: None)
    assert await process.queue.remove(ALL) == 1
    await process.queue._engine.finish_background()
    assert before is not None
    assert cluster.tables.limits.have_passed(before)
    await cluster.close()


async def test_a_slice_behind_a_waiting_mail_is_marked_at_the_next_check(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Its mail waited when it was checked first."""
    (start,) = await behind_a_waiting_mail(cluster, process, "goes")
    await cluster.pass_time(BEYOND)
    await process.queue.maintain()
    assert drained(cluster) == set()
    await process.queue.remove(Selector(name="goes"))

    await cluster.pass_time(BEYOND - SECOND)
    await process.queue.maintain()
    assert drained(cluster) == set()
    await cluster.pass_time(SECOND)
    await process.queue.maintain()

    assert drained(cluster) == {start}


async def test_no_slice_is_marked_under_another_configuration_than_it_was_read_with(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Rows may lie in buckets that were not read."""
    await behind_a_waiting_mail(cluster, process, "goes")
    advance = process.queue._maintenance._advance
    await advance.run()
    await process.queue.remove(Selector(name="goes"))
    await cluster.pass_time(BEYOND)
    more = ViewConfiguration(WINDOW, 4, 10**9)

    async def reconfigure() -> None:
        before = cluster.configuration.current.writing
        cluster.configuration.current = Effective(more, (before, more))

    process.faults.before = counting = Before("count_rows", reconfigure)
    with pytest.raises(ConfigurationStale):
        await advance.run()

    assert counting.happened
    assert drained(cluster) == set()
