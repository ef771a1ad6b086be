"""Two operations that meet on one mail, their steps interleaved in many orders."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from contract.queue_harness import plain_mail
from postroad.distributed.entries import dead_letters
from postroad.domain.queues.selection import Selector
from postroad.ports.mail_queue import Item
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Step

ALL = Selector.all()
ORDERS = 8

ITEM: dict[str, Callable[[Item], Awaitable[None]]] = {
    "done": lambda item: item.done(),
    "retry": lambda item: item.retry(timedelta(0)),
    "reject": lambda item: item.reject("no"),
}
ADMINISTRATION: dict[str, Callable[[Process], Awaitable[object]]] = {
    "remove": lambda process: process.queue.remove(ALL),
    "hold": lambda process: process.queue.hold(ALL),
    "republish": lambda process: process.queue.republish(timedelta(0)),
    "expire": lambda process: process.queue.expire(ALL),
    "maintain": lambda process: process.queue.maintain(),
}


def interleave(seed: int, *processes: Process) -> None:
    """Let the processes go on in an order of its own at every step."""
    randomness = random.Random(seed)

    async def before(step: Step) -> None:
        for _ in range(randomness.randrange(6)):
            await asyncio.sleep(0)

    for process in processes:
        process.faults.before = before


@pytest.mark.parametrize("administration", ADMINISTRATION)
@pytest.mark.parametrize("ending", ITEM)
async def test_ending_meets_administration(ending: str, administration: str) -> None:
    for order in range(ORDERS):
        cluster = InMemoryCluster(seed=order)
        worker, person = await cluster.start(), await cluster.start()
        await cluster.enqueue(worker, "mail")
        await cluster.pass_time(timedelta(seconds=1))
        _, item = await cluster.take(worker)
        if ending == "done":
            cluster.transmit(item)
        interleave(order, worker, person)

        meeting = asyncio.gather(ITEM[ending](item), ADMINISTRATION[administration](person))
        assert await cluster.outcome(meeting, timedelta(minutes=1))
        removed = administration == "remove" and meeting.result()[1] == 1

        worker.faults.before = person.faults.before = None
        await person.queue.release(ALL)
        await worker.queue.close()
        await cluster.recover()
        dead = len(cluster.tables.dead_letters)
        where = f"{ending} meets {administration}, order {order}"
        assert dead <= (ending == "reject" or administration == "expire"), where
        if ending == "done":
            assert (cluster.copies("mail"), dead) == (1, 0), where
        else:
            assert cluster.copies("mail") + dead == (0 if removed else 1), where
        cluster.check_marks_have_rows()
        cluster.check_nothing_is_left(["mail"] * dead)
        await cluster.close()


@pytest.mark.parametrize("other", ["flush", "release", *ADMINISTRATION])
@pytest.mark.parametrize("one", ["flush", "hold", "remove"])
async def test_administration_meets_administration(one: str, other: str) -> None:
    operations = ADMINISTRATION | {
        "flush": lambda process: process.queue.flush(ALL),
        "release": lambda process: process.queue.release(ALL),
    }
    for order in range(ORDERS):
        cluster = InMemoryCluster(seed=order)
        first, second = await cluster.start(), await cluster.start()
        await cluster.enqueue(first, "mail", delay=300)
        interleave(order, first, second)

        meeting = asyncio.gather(operations[one](first), operations[other](second))
        assert await cluster.outcome(meeting, timedelta(minutes=1))
        counts = meeting.result()

        first.faults.before = second.faults.before = None
        where = f"{one} meets {other}, order {order}: {counts}"
        assert len(cluster.tables.live()) <= 1, where
        await first.queue.release(ALL)
        await first.queue.flush(ALL)
        await cluster.recover()
        removed = "remove" in (one, other)
        dead = len(cluster.tables.dead_letters)
        if other == "expire":
            removed = one == "remove" and counts[0] == 1
            assert dead == (counts[1] == 1), where
        assert cluster.copies("mail") + dead == (0 if removed else 1), where
        if one == other == "remove":
            assert sorted(str(count) for count in counts) == ["0", "1"], where
        cluster.check_nothing_is_left(["mail"] * dead)
        await cluster.close()


async def give_up_in_flight(cluster: InMemoryCluster) -> tuple[Process, Item]:
    """Let one process move a mail to the dead letters that a consumer of another one has."""
    worker, other = await cluster.start(), await cluster.start()
    await worker.queue.enqueue(plain_mail("mail", recipients=("a@x.example", "b@x.example")))
    await cluster.pass_time(timedelta(seconds=1))
    _, item = await cluster.take(worker)
    (entry,) = cluster.tables.unexpired().values()
    engine = other.queue._engine
    assert await dead_letters.give_up(engine, entry, entry.envelope, "no") is None
    return worker, item


async def test_dead_letter_of_a_mail_that_its_consumer_delivers_is_withdrawn() -> None:
    cluster = InMemoryCluster(seed=1)
    _, item = await give_up_in_flight(cluster)

    await item.done()
    await cluster.recover()

    assert not cluster.tables.dead_letters
    cluster.check_nothing_is_left()
    await cluster.close()


async def test_requeue_leaves_out_who_got_the_mail_while_it_was_given_up() -> None:
    cluster = InMemoryCluster(seed=1)
    worker, item = await give_up_in_flight(cluster)

    await item.retry(timedelta(0), remaining=("b@x.example",))
    assert await worker.queue.requeue(ALL) == 1

    _, again = await cluster.take(worker)
    assert again.mail.recipients == ("b@x.example",)
    await again.done()
    await cluster.close()
