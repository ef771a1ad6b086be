"""Outcomes lie in the mark that ends the attempt: no request more, and no other entry has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import pytest

from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.selection import Selector
from postroad.errors import EntryEnded, ServerError
from postroad.ports.mail_queue import Item
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step

HEARD = AttemptOutcomes.of({"b@example.net": Outcome.deferred("450 later")}, 0.5)
NOW = timedelta(0)

ENDINGS: dict[str, Callable[[Item, AttemptOutcomes | None], Awaitable[None]]] = {
    "done": lambda item, heard: item.done(heard),
    "retry": lambda item, heard: item.retry(NOW, outcomes=heard),
    "reject": lambda item, heard: item.reject("no", heard),
}


def kept(cluster: InMemoryCluster) -> dict[UUID, AttemptOutcomes]:
    return {key.enqueue_id: outcomes for key, outcomes in cluster.tables.outcomes.items()}


async def one_in_flight(cluster: InMemoryCluster) -> tuple[Process, UUID, Item]:
    """A process with one mail in flight, and its entry."""
    process = await cluster.start()
    (entry,) = await cluster.enqueue(process, "mail")
    _, item = await cluster.take(process)
    return process, entry, item


@pytest.mark.parametrize("ending", ENDINGS)
async def test_outcomes_cost_no_request(ending: str) -> None:
    steps = []
    for heard in (None, HEARD):
        cluster = InMemoryCluster()
        process, entry, item = await one_in_flight(cluster)
        first = len(process.faults.steps)
        await ENDINGS[ending](item, heard)
        steps.append([(step.server, step.operation) for step in process.faults.steps[first:]])
        assert kept(cluster) == ({} if heard is None else {entry: heard})
        await cluster.close()

    assert steps[0] == steps[1]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("fault", [Fault.AWAY, Fault.ANSWER_LOST])
@pytest.mark.parametrize(
    "step", ["mark_delivered", "end", "write_dead_letter", "publish", "delete"]
)
async def test_an_ending_that_is_insisted_on_keeps_its_outcomes(
    cluster: InMemoryCluster, step: str, fault: Fault, ending: str
) -> None:
    process, entry, item = await one_in_flight(cluster)
    met: list[Step] = []

    def once(each: Step) -> Fault | None:
        met.extend([each] if each.operation == step else [])
        return fault if met == [each] else None

    process.fail(once)
    with suppress(ServerError):
        await ENDINGS[ending](item, HEARD)
    with suppress(EntryEnded):
        await ENDINGS[ending](item, HEARD)

    assert kept(cluster) == {entry: HEARD}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_where_an_administrator_was_first_only_a_delivery_is_marked_at_all(
    cluster: InMemoryCluster, ending: str
) -> None:
    process, entry, item = await one_in_flight(cluster)
    await process.queue.remove(Selector.all())

    await ENDINGS[ending](item, HEARD)

    assert kept(cluster) == ({entry: HEARD} if ending == "done" else {})


async def test_a_delivery_that_is_propagated_leaves_its_outcomes_with_the_entry_attempted(
    cluster: InMemoryCluster,
) -> None:
    process, entry, item = await one_in_flight(cluster)
    await process.queue.hold(Selector.all())

    await item.done(HEARD)
    while (await process.queue.size()).size:
        await cluster.pass_time(timedelta(minutes=1))
        await process.queue.maintain()

    assert len(cluster.tables.marks) == 2
    assert kept(cluster) == {entry: HEARD}


async def test_administration_keeps_none(cluster: InMemoryCluster) -> None:
    process, dead, item = await one_in_flight(cluster)
    await item.reject("no", HEARD)

    await process.queue.requeue(Selector.all())
    await process.queue.hold(Selector.all())
    await process.queue.remove(Selector.all())

    assert len(cluster.tables.marks) > 2
    assert kept(cluster) == {dead: HEARD}
