"""Views that last or are kept: sizes over slices whose rows were counted before, and a browse that
takes so long that most of the queue changes meanwhile."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.distributed.reading import browse
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.selection import Selector
from support.in_memory_cluster import WINDOW, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, Stopped

ALL = Selector.all()
MINUTE = timedelta(minutes=1)


async def test_size_is_right_when_a_closed_slice_gets_a_row_that_is_withdrawn(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The successor of a retry that died was given up for another one, long after its slice was
    closed and counted."""
    victim = await cluster.start()
    await cluster.enqueue(process, "mail")
    _, item = await cluster.take(victim)
    await cluster.pass_time(WINDOW)
    await cluster.enqueue(process, "in the successor's slice")
    await process.queue.hold(Selector(name="in the successor's slice"))
    victim.fail(lambda step: Fault.STOP_AFTER if step.operation == "end" else None)
    with pytest.raises(Stopped):
        await item.retry(timedelta(0))
    await cluster.pass_time(3 * WINDOW)
    asker, sizes = await cluster.start(), []

    async def ask(step: Step) -> None:
        if step.operation in {"change_successor", "mark_published"}:
            sizes.append((await asker.queue.size()).size)

    process.faults.before = ask
    await process.queue.maintain()

    assert len(sizes) == 2
    assert (await asker.queue.size()).size == 2
    assert (await asker.queue.size()).held == 1


async def test_size_is_never_negative_when_rows_expired_before_their_marks(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Browse start stood for a row's lifetime: the rows are gone, their marks are younger."""
    await cluster.enqueue(process, "one", "two")
    await process.queue.remove(ALL)
    cluster.tables.rows.clear()

    sizes = await process.queue.size()

    assert sizes == Sizes(0, 0, 0, 0)


@pytest.mark.parametrize("operation", ["remove", "hold", "expire", "browse", "size", "ages"])
async def test_an_operation_over_all_that_waits_reads_limits_and_clocks_once(
    cluster: InMemoryCluster, process: Process, operation: str
) -> None:
    """A removal of one mail reads the limits once more, after its mark."""
    await cluster.enqueue(process, "mail", delay=3600)
    began = len(process.faults.steps)

    if operation == "browse":
        assert len([each async for each in process.queue.browse()]) == 1
    elif operation in {"size", "ages"}:
        assert await getattr(process.queue, operation)()
    else:
        assert await getattr(process.queue, operation)(Selector(name="mail")) == 1

    done = [step.operation for step in process.faults.steps[began:]]
    assert done[:2] == ["limits", "server_times"]
    assert done.count("server_times") == 1


async def test_browse_remembers_no_more_than_it_can_meet_again(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mails are retried behind and before a slow browse for many slices."""
    seen: list[browse._Ahead] = []

    class Watched(browse._Ahead):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            seen.append(self)

    monkeypatch.setattr(browse, "_Ahead", Watched)
    for number in range(40):
        await cluster.enqueue(process, f"mail{number}")
        await cluster.pass_time(MINUTE)
    consumer = Consumer(cluster, process.queue, prefetch=50)
    items = [await consumer.next() for _ in range(40)]
    found, most = [], 0

    async for view in process.queue.browse():
        found.append(view.mail.name)
        if len(found) % 4 == 0 and items:
            await items.pop().retry(timedelta(hours=5))
            await items.pop(0).retry(timedelta(hours=5))
        most = max(most, len(seen[0]))
        await cluster.pass_time(MINUTE)

    assert {f"mail{number}" for number in range(40)} == set(found)
    assert most < 8
    assert len(seen[0]) <= 1, "one may lie in a partition that was empty when it was looked at"
    await consumer.close()


async def test_browse_yields_a_mail_that_it_followed_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "before")
    await cluster.pass_time(WINDOW)
    await cluster.enqueue(process, *(f"mail{number}" for number in range(12)))
    consumer = Consumer(cluster, process.queue, prefetch=50)
    _, *items = [await consumer.next() for _ in range(13)]

    found = []
    async for view in process.queue.browse():
        found.append(view.mail.name)
        if found == ["before"]:
            for item in items:
                await item.retry(timedelta(0))

    assert found == ["before", *(f"mail{number}" for number in range(12))]
    await consumer.close()


async def test_nothing_new_begins_while_a_queue_closes(
    cluster: InMemoryCluster, process: Process
) -> None:
    """It waits for what is under way, which may take as long as a server is away."""
    process.faults.plan = lambda step: Fault.AWAY if step.operation == "publish" else None
    under_way = asyncio.ensure_future(cluster.enqueue(process, "under way"))
    await cluster.pass_time(timedelta(seconds=1))
    closing = asyncio.ensure_future(process.queue.close())
    await cluster.pass_time(timedelta(seconds=1))
    assert not closing.done()
    rows = len(cluster.tables.rows)

    late = asyncio.ensure_future(cluster.enqueue(process, "late"))
    assert await cluster.outcome(asyncio.gather(late, return_exceptions=True), MINUTE)
    assert await cluster.outcome(closing, MINUTE)

    assert type(late.exception()).__name__ == "QueueClosed"
    assert len(cluster.tables.rows) == rows
    assert under_way.exception() is not None
    assert process.queue._engine._until_closed == set()
    assert process.queue._engine._background == set()


async def test_withdrawal_that_a_closing_queue_leaves_over_does_not_outlive_it(
    cluster: InMemoryCluster, process: Process
) -> None:
    process.faults.plan = lambda step: Fault.AWAY if cluster.tables.rows else None
    under_way = asyncio.ensure_future(cluster.enqueue(process, "under way"))
    await cluster.pass_time(timedelta(seconds=1))
    closing = asyncio.ensure_future(process.queue.close())

    assert await cluster.outcome(closing, 5 * MINUTE)

    assert under_way.exception() is not None
    assert all(task.done() for task in process.queue._engine._until_closed)
    assert await cluster.recover() == []
