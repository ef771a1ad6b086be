"""A worker that stops at any step loses no report of a failure and makes no second one, in both
engines: the report is durable before the record that ends its recipient (AMB-11)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import cast

import pytest

from contract.queue_harness import Consumer, eventually
from crash.cuts import disks_after
from crash.lossy import LossyFiles
from crash.world import opened, start
from postroad.domain.mail.mail import Mail
from postroad.embedded.store.owner import Consumer as SpoolConsumer
from postroad.embedded.store.owner import OwnedQueue
from postroad.errors import PostroadError
from postroad.ports.mail_queue import MailQueue
from support.in_memory_cluster import LONG, InMemoryCluster, Process
from support.memory.clock import ManualClock, SeededRandomness
from support.memory.fault_injection import Fault, Stopped, at
from support.reported import RefusingHop, deliverer
from support.workers import OneByOne

SENDER = "sender@example.org"
MAIL = Mail(
    SENDER,
    ("no1@example.net", "yes@example.net", "no2@example.net"),
    b"Subject: hello\r\n\r\nbody\r\n",
    name="mail",
)
MAX_STEPS = 200


def of_process(process: Process, hop: RefusingHop) -> OneByOne:
    return deliverer(process.queue, hop, process.clock, SeededRandomness(0))


async def deliver_all(cluster: InMemoryCluster, process: Process, hop: RefusingHop) -> None:
    consumer = Consumer(cluster, process.queue, prefetch=50)
    worker = of_process(process, hop)
    while not await consumer.nothing(LONG):
        await eventually(cluster, worker.deliver(await consumer.next()), LONG)
    await consumer.close()


async def deliver_with(
    cluster: InMemoryCluster, victim: Process, hop: RefusingHop, number: int, fault: Fault
) -> bool:
    """Deliver the mail by a process that meets a fault at its n-th step from then on; return
    whether it took so many."""
    consumer, item = await cluster.take(victim)
    await consumer.close()  # else it would have the report in flight
    begun = len(victim.faults.steps)
    victim.fail(at(number, fault))
    delivering = asyncio.ensure_future(of_process(victim, hop).deliver(item))
    if not await cluster.outcome(delivering, LONG):
        delivering.cancel()  # a task of a stopped process waits for another one for ever
    with suppress(Stopped, PostroadError, asyncio.CancelledError):
        await delivering
    return len(victim.faults.steps) - begun > number


FAULTS = pytest.mark.parametrize("fault", [Fault.STOP_AFTER, Fault.AWAY, Fault.ANSWER_LOST])


@FAULTS
async def test_a_process_over_servers_may_stop_or_fail_at_any_step(fault: Fault) -> None:
    number, is_met = 0, True
    while is_met:
        cluster, hop = InMemoryCluster(seed=number), RefusingHop()
        healthy, victim = await cluster.start(), await cluster.start()
        await healthy.queue.enqueue(MAIL)
        is_met = await deliver_with(cluster, victim, hop, number, fault)

        await deliver_all(cluster, await cluster.start(), hop)

        assert hop.reports == {"no1@example.net": 1, "no2@example.net": 1}, number
        assert hop.copies[SENDER] == 1
        assert 1 <= hop.copies["yes@example.net"] <= (2 if fault is Fault.STOP_AFTER else 1)
        dead_letters = [view async for view in healthy.queue.dead_letters()]
        assert [set(view.mail.recipients) for view in dead_letters] == [
            {"no1@example.net", "no2@example.net"}
        ]
        await cluster.close()
        number += 1
        assert number < MAX_STEPS
    assert number > 10


@FAULTS
async def test_a_process_may_stop_or_fail_at_any_step_of_shortening_a_report(fault: Fault) -> None:
    number, is_met = 0, True
    while is_met:
        cluster, hop = InMemoryCluster(seed=number), RefusingHop(refuses_returned=True)
        healthy, victim = await cluster.start(), await cluster.start()
        await healthy.queue.enqueue(MAIL)
        consumer, item = await cluster.take(healthy)
        await consumer.close()
        await eventually(cluster, of_process(healthy, hop).deliver(item), LONG)
        is_met = await deliver_with(cluster, victim, hop, number, fault)

        await deliver_all(cluster, await cluster.start(), hop)

        assert hop.reports == {"no1@example.net": 1, "no2@example.net": 1}, number
        assert hop.copies[SENDER] == 1
        dead_letters = [view async for view in healthy.queue.dead_letters()]
        assert sorted(view.mail.sender or "" for view in dead_letters) == ["", SENDER]
        await cluster.close()
        number += 1
        assert number < MAX_STEPS
    assert number > 5


async def deliver_next(consumer: SpoolConsumer, worker: OneByOne) -> None:
    await worker.deliver(await asyncio.wait_for(consumer.next(), 60))


@pytest.mark.parametrize("is_shortened", [False, True], ids=["a mail", "a report"])
async def test_a_store_may_lose_its_power_at_any_write(*, is_shortened: bool) -> None:
    """The report is not delivered before the cut, so each disk has it, or what it is made of."""
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    await queue.enqueue(MAIL)
    consumer = queue.consumer(1)
    if is_shortened:
        await deliver_next(consumer, of_store(queue, RefusingHop(), clock))
    accepted = max(files.journal.cuts())
    await deliver_next(consumer, of_store(queue, RefusingHop(refuses_returned=True), clock))
    assert (await queue.size()).size == 1
    await queue.close()

    disks = 0
    for cut in files.journal.cuts():
        if cut <= accepted:
            continue
        for disk in disks_after(files.journal, cut, most=4):
            hop = RefusingHop(refuses_returned=is_shortened)
            async with opened(disk, ManualClock()) as (_, recovered):
                consumer, worker = recovered.consumer(50), of_store(recovered, hop, ManualClock())
                while (await recovered.size()).size:
                    await deliver_next(consumer, worker)
                dead_letters = [view async for view in recovered.dead_letters()]
            assert hop.reports == {"no1@example.net": 1, "no2@example.net": 1}
            assert len(dead_letters) == 1 + is_shortened
            disks += 1
    assert disks > 20


def of_store(queue: OwnedQueue, hop: RefusingHop, clock: ManualClock) -> OneByOne:
    return deliverer(cast("MailQueue", queue), hop, clock, SeededRandomness(0))
