"""The number of dead letters, which is no reason to miss the number of mails that wait."""

from __future__ import annotations

from datetime import timedelta

from contract.queue_harness import Consumer
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.selection import Selector
from postroad.telemetry import metrics
from support.in_memory_cluster import Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault


async def bury_and_enqueue(cluster: InMemoryCluster, process: Process) -> None:
    await cluster.enqueue(process, "dead")
    consumer = Consumer(cluster, process.queue)
    await (await consumer.next()).reject("no")
    await consumer.close()
    await cluster.enqueue(process, "waits")


async def test_size_without_a_count_of_dead_letters_says_what_waits(
    cluster: InMemoryCluster, process: Process
) -> None:
    await bury_and_enqueue(cluster, process)
    uncounted = metrics.UNCOUNTED.labels("mail", "outgoing")._value.get()
    process.faults.plan = lambda step: (
        Fault.AWAY if step.operation == "count_dead_letters" else None
    )

    assert await process.queue.size() == Sizes(1, 0, 0, None)
    assert metrics.UNCOUNTED.labels("mail", "outgoing")._value.get() == uncounted + 1

    process.faults.plan = lambda step: None
    assert await process.queue.size() == Sizes(1, 0, 0, 1)


async def test_count_that_took_long_is_used_for_ten_times_as_long(
    cluster: InMemoryCluster, process: Process
) -> None:
    await bury_and_enqueue(cluster, process)

    async def slow() -> None:
        await cluster.pass_time(timedelta(seconds=3))

    process.faults.before = Before("count_dead_letters", slow)
    assert (await process.queue.size()).dead_letters == 1
    assert await process.queue.requeue(Selector.all()) == 1

    await cluster.pass_time(timedelta(seconds=29.999))
    assert (await process.queue.size()).dead_letters == 1
    await cluster.pass_time(timedelta(milliseconds=1))
    assert await process.queue.size() == Sizes(2, 0, 0, 0)
