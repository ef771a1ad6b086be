"""An enqueue that ends by something else than a server's error leaves nothing behind either."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from contract.queue_harness import plain_mail
from postroad.errors import BrokerUnavailable, ClockSkew, QueueClosed
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step


class DriverBug(Exception):
    """No error that postroad knows."""


def broken_at(process: Process, operation: str) -> None:
    async def before(step: Step) -> None:
        if step.operation == operation:
            process.faults.before = None
            raise DriverBug(operation)

    process.faults.before = before


@pytest.mark.parametrize("operation", ["insert", "publish"])
async def test_enqueue_is_withdrawn_whatever_the_error(
    cluster: InMemoryCluster, process: Process, operation: str
) -> None:
    broken_at(process, operation)

    work = asyncio.ensure_future(process.queue.enqueue(plain_mail("mail")))
    await cluster.outcome(work, timedelta(minutes=1))

    with pytest.raises(DriverBug):
        work.result()
    assert cluster.tables.live() == []
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_enqueue_whose_withdrawal_is_broken_too_is_withdrawn_later(
    cluster: InMemoryCluster, process: Process
) -> None:
    process.faults.plan = lambda step: Fault.AWAY if step.operation == "publish" else None
    broken_at(process, "end")

    work = asyncio.ensure_future(process.queue.enqueue(plain_mail("mail")))
    await cluster.outcome(work, timedelta(minutes=2))

    with pytest.raises(BrokerUnavailable):
        work.result()
    await cluster.pass_time(timedelta(minutes=1))
    assert cluster.tables.live() == []


async def enqueue_that_hangs(process: Process, operation: str) -> asyncio.Future[UUID]:
    """Return an enqueue that has come to its first step of this name."""
    entered = asyncio.Event()

    async def hang(step: Step) -> None:
        if step.operation == operation:
            process.faults.before = None
            entered.set()
            await asyncio.Event().wait()

    process.faults.before = hang
    caller = asyncio.ensure_future(process.queue.enqueue(plain_mail("mail")))
    await entered.wait()
    return caller


@pytest.mark.parametrize("operation", ["insert", "publish"])
async def test_enqueue_that_the_closing_loop_cancels_is_withdrawn(
    cluster: InMemoryCluster, process: Process, operation: str
) -> None:
    """As `asyncio.run` does with all tasks at its end."""
    caller = await enqueue_that_hangs(process, operation)
    for task in [caller, *process.queue._engine._background]:
        task.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await asyncio.gather(*process.queue._engine._background, return_exceptions=True)

    assert caller.cancelled()
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_cancelled_enqueue_does_not_hold_up_the_loop_for_a_view_that_is_away(
    cluster: InMemoryCluster, process: Process
) -> None:
    caller = await enqueue_that_hangs(process, "publish")
    process.faults.plan = lambda step: Fault.AWAY if step.server == "view" else None
    background = list(process.queue._engine._background)
    for task in background:
        task.cancel()
    await asyncio.wait([caller, *background])  # no time passes

    assert process.queue._engine._until_closed == set()


async def test_bytes_are_deleted_when_no_id_can_be_made_after_the_upload(
    cluster: InMemoryCluster, process: Process
) -> None:
    async def step_back(step: Step) -> None:
        if step.operation == "put":
            process.faults.before = None
            cluster.clock.jump(process.queue._engine.timing.read_lease)
            process.faults.plan = skewed

    def skewed(step: Step) -> Fault | None:
        if step.operation == "server_times":
            process.clock.skew = -10 * process.queue._engine.timing.skew
        return None

    process.faults.before = step_back
    with pytest.raises(ClockSkew):
        await process.queue.enqueue(plain_mail("mail"))

    assert cluster.blobs == {}


async def test_enqueue_whose_queue_is_closed_during_the_upload_is_refused(
    cluster: InMemoryCluster, process: Process
) -> None:
    async def close(step: Step) -> None:
        if step.operation == "put":
            process.faults.before = None
            await process.queue.close()

    process.faults.before = close
    with pytest.raises(QueueClosed):
        await process.queue.enqueue(plain_mail("mail"))

    assert cluster.tables.live() == []
    assert cluster.blobs == {}
