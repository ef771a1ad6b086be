"""The due mail that waits longest, read from where none waits before."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroad.distributed.reading import size
from postroad.domain.queues.selection import Selector
from support.in_memory_cluster import WINDOW, InMemoryCluster, Process

MINUTE = timedelta(minutes=1)


async def since(process: Process, name: str) -> object:
    found = process.queue.browse(Selector(name=name))
    (view,) = [each async for each in found]
    return view.due_at or view.enqueued_at


async def oldest(process: Process) -> object:
    return (await process.queue.size()).oldest_due


async def test_it_is_that_of_the_first_slice_and_of_every_bucket(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "first")
    await cluster.pass_time(MINUTE)
    await cluster.enqueue(process, *map(str, range(20)))
    await cluster.pass_time(WINDOW)
    await cluster.enqueue(process, "last")

    assert await oldest(process) == await since(process, "first")
    await process.queue.remove(Selector(name="first"))
    assert await oldest(process) == await since(process, "0")


async def test_mail_that_was_delayed_is_due_since_its_delay_ended(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "retried", delay=600)
    assert await oldest(process) is None
    await cluster.pass_time(2 * MINUTE)
    await cluster.enqueue(process, "new")
    assert await oldest(process) == await since(process, "new")
    (row,) = (each for each in cluster.tables.live() if each.envelope.name == "retried")

    await process.queue.remove(Selector(name="new"))
    await cluster.pass_time(20 * MINUTE)
    await cluster.enqueue(process, "newer")
    assert await oldest(process) == row.due_at


async def test_rows_that_are_over_are_read_once_and_no_more_than_the_bound(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size, "MAX_SOUGHT", 4)
    await cluster.enqueue(process, *map(str, range(9)))
    assert len(await cluster.deliver(process, MINUTE)) == 9
    await cluster.enqueue(process, "waits")
    waits = await since(process, "waits")

    found = [await oldest(process) for _ in range(9)]
    assert found[0] is None
    assert found[-1] == waits
    assert found == sorted(found, key=lambda each: each is not None), "found, and found again"
