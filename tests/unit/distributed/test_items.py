"""What an item in hand costs in requests."""

from __future__ import annotations

from contract.queue_harness import Consumer, letter
from postroad.domain.mail import Mail, Outcome
from postroad.ports.mail_queue import Item
from support.in_memory_cluster import InMemoryCluster, Process


async def _leased(cluster: InMemoryCluster, process: Process, mail: Mail) -> Item:
    await process.queue.enqueue(mail)
    return await Consumer(cluster, process.queue).next()


def _count(process: Process, operation: str) -> int:
    return sum(step.operation == operation for step in process.faults.steps)


async def test_fifty_refusals_with_texts_of_their_own_are_one_request(
    cluster: InMemoryCluster, process: Process
) -> None:
    refused = {f"r{n}@x.example": Outcome.failed(f"550 no r{n}") for n in range(50)}
    item = await _leased(cluster, process, letter(recipients=tuple(refused)))

    await item.record(refused)

    assert _count(process, "record") == 1
