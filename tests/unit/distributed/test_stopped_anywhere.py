"""Every operation, stopped or failed at every one of its steps: nothing is lost, nothing removed
comes back, nothing comes twice but what was in flight, and nothing is left lying about.

Each case runs one operation in a process of its own, with one fault at its n-th step, for every n
until the operation has no n-th step any more. Then a healthy process maintains and delivers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.selection import Selector
from postroad.errors import PostroadError
from postroad.ports.mail_queue import Item
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Fault, Stopped, at

ALL = Selector.all()
MAX_STEPS = 200
FAULTS = (Fault.STOP_AFTER, Fault.AWAY, Fault.ANSWER_LOST)
"""Stopping before a step is stopping after the one before it."""


Start = Callable[[InMemoryCluster, Process, Process], Awaitable[Callable[[], Awaitable[object]]]]
"""Gets a cluster with a healthy process and the one with faults, and returns the operation."""


@dataclass
class Case:
    """What happens to the mail named `mail`. `copies` are how often it may be transmitted in the
    end, when the operation failed, and when it succeeded."""

    run: Start
    after_failure: tuple[int, ...]
    after_success: tuple[int, ...]
    dead: bool = False


async def leased(cluster: InMemoryCluster, victim: Process) -> Item:
    _, item = await cluster.take(victim)
    return item


def of_a_waiting_mail(
    act: Callable[[InMemoryCluster, Process], Awaitable[object]], delay: float = 0
) -> Start:
    async def start(
        cluster: InMemoryCluster, healthy: Process, victim: Process
    ) -> Callable[[], Awaitable[object]]:
        await cluster.enqueue(healthy, "mail", delay=delay)
        return lambda: act(cluster, victim)

    return start


def of_a_mail_in_flight(act: Callable[[Item], Awaitable[object]]) -> Start:
    async def start(
        cluster: InMemoryCluster, healthy: Process, victim: Process
    ) -> Callable[[], Awaitable[object]]:
        await cluster.enqueue(healthy, "mail")
        item = await leased(cluster, victim)
        return lambda: act(item)

    return start


async def enqueue(
    cluster: InMemoryCluster, healthy: Process, victim: Process
) -> Callable[[], Awaitable[object]]:
    return lambda: cluster.enqueue(victim, "mail")


async def enqueue_delayed(
    cluster: InMemoryCluster, healthy: Process, victim: Process
) -> Callable[[], Awaitable[object]]:
    return lambda: cluster.enqueue(victim, "mail", delay=20)


async def done(
    cluster: InMemoryCluster, healthy: Process, victim: Process
) -> Callable[[], Awaitable[object]]:
    await cluster.enqueue(healthy, "mail")
    item = await leased(cluster, victim)
    cluster.transmit(item)
    return item.done


async def record_then_done(
    cluster: InMemoryCluster, healthy: Process, victim: Process
) -> Callable[[], Awaitable[object]]:
    await cluster.enqueue(healthy, "mail")
    item = await leased(cluster, victim)
    cluster.transmit(item)

    async def operation() -> None:
        await item.record(dict.fromkeys(item.mail.recipients, Outcome.delivered("250")))
        await item.done()

    return operation


async def remove_retried(
    cluster: InMemoryCluster, healthy: Process, victim: Process
) -> Callable[[], Awaitable[object]]:
    await cluster.enqueue(healthy, "mail")
    await (await leased(cluster, healthy)).retry(timedelta(seconds=60))
    return lambda: victim.queue.remove(ALL)


async def purge(
    cluster: InMemoryCluster, healthy: Process, victim: Process
) -> Callable[[], Awaitable[object]]:
    await cluster.enqueue(healthy, "mail")
    await cluster.pass_time(timedelta(seconds=61))
    return victim.queue.purge


async def hold_and_release(
    cluster: InMemoryCluster, healthy: Process, victim: Process
) -> Callable[[], Awaitable[object]]:
    await cluster.enqueue(healthy, "mail")

    async def operation() -> None:
        await victim.queue.hold(ALL)
        await victim.queue.release(ALL)

    return operation


async def release(
    cluster: InMemoryCluster, healthy: Process, victim: Process
) -> Callable[[], Awaitable[object]]:
    await cluster.enqueue(healthy, "mail")
    await healthy.queue.hold(ALL)
    return lambda: victim.queue.release(ALL)


async def republish_lost(
    cluster: InMemoryCluster, healthy: Process, victim: Process
) -> Callable[[], Awaitable[object]]:
    await cluster.enqueue(healthy, "mail")
    cluster.broker.lose_everything()
    await cluster.pass_time(timedelta(minutes=1))
    return lambda: victim.queue.republish(timedelta(seconds=30))


async def requeue(
    cluster: InMemoryCluster, healthy: Process, victim: Process
) -> Callable[[], Awaitable[object]]:
    await cluster.enqueue(healthy, "mail")
    await (await leased(cluster, healthy)).reject("no")
    return lambda: victim.queue.requeue(ALL)


async def maintain(
    cluster: InMemoryCluster, healthy: Process, victim: Process
) -> Callable[[], Awaitable[object]]:
    await cluster.enqueue(healthy, "before")
    await cluster.deliver(healthy, timedelta(seconds=1))
    await cluster.enqueue(healthy, "mail")
    await victim.queue.maintain()
    await cluster.pass_time(timedelta(minutes=20))

    async def operation() -> None:
        await victim.queue.maintain()
        await victim.clock.sleep(timedelta(minutes=2))
        await victim.queue.maintain()

    return operation


async def deliver_one(cluster: InMemoryCluster, victim: Process) -> None:
    async for item in victim.queue.dequeue():
        cluster.transmit(item)
        await item.done()
        return


CASES = {
    # A failed enqueue is withdrawn; a stopped one may be delivered once (invariant 1).
    "enqueue": Case(enqueue, (0, 1), (1,)),
    "enqueue delayed": Case(enqueue_delayed, (0, 1), (1,)),
    # A transmission that was not recorded before the stop is repeated (invariant 10).
    "done": Case(done, (1, 2), (1,)),
    "record, done": Case(record_then_done, (1, 2), (1,)),
    "retry": Case(of_a_mail_in_flight(lambda item: item.retry(timedelta(0))), (1,), (1,)),
    "retry late": Case(
        of_a_mail_in_flight(lambda item: item.retry(timedelta(seconds=90))), (1,), (1,)
    ),
    "reject": Case(of_a_mail_in_flight(lambda item: item.reject("no")), (0, 1), (0,), dead=True),
    "remove": Case(of_a_waiting_mail(lambda _, victim: victim.queue.remove(ALL)), (0, 1), (0,)),
    "remove retried": Case(remove_retried, (0, 1), (0,)),
    "purge": Case(purge, (0, 1), (0,)),
    "purge of young mail": Case(
        of_a_waiting_mail(lambda _, victim: victim.queue.purge()), (0, 1), (0,)
    ),
    "flush": Case(
        of_a_waiting_mail(lambda _, victim: victim.queue.flush(ALL), delay=300), (1,), (1,)
    ),
    "hold and release": Case(hold_and_release, (0, 1), (1,)),
    "release": Case(release, (0, 1), (1,)),
    "republish": Case(republish_lost, (0, 1), (1,)),
    "expire": Case(
        of_a_waiting_mail(lambda _, victim: victim.queue.expire(ALL), delay=300),
        (0, 1),
        (0,),
        dead=True,
    ),
    "requeue": Case(requeue, (0, 1), (1,)),
    "deliver": Case(of_a_waiting_mail(deliver_one), (1, 2), (1,)),
    "deliver delayed": Case(of_a_waiting_mail(deliver_one, delay=3), (1, 2), (1,)),
    "maintain": Case(maintain, (1,), (1,)),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("name", CASES)
async def test_operation_may_stop_or_fail_at_any_step(name: str, fault: Fault) -> None:
    for number in range(MAX_STEPS):
        reached = await attempt(CASES[name], name, number, fault)
        if not reached:
            return
    pytest.fail("the operation has more steps than this test expects")


async def attempt(case: Case, name: str, number: int, fault: Fault) -> bool:
    """Run one operation with a fault at one step; return whether it has this step."""
    cluster = InMemoryCluster(seed=number)
    healthy, victim = await cluster.start(), await cluster.start()
    operation = await case.run(cluster, healthy, victim)
    first = len(victim.faults.steps)
    victim.fail(at(number, fault))
    work = asyncio.ensure_future(operation())
    try:
        await cluster.outcome(work, timedelta(minutes=3))
        if not work.done():
            assert victim.faults.stopped, f"step {number}: it hangs"
            work.cancel()
        await work
        succeeded = True
    except (PostroadError, Stopped, asyncio.CancelledError):
        succeeded = False
    reached = len(victim.faults.steps) - first > number
    victim.faults.stop()

    await cluster.recover()
    await finish_by_hand(cluster, requeue=not case.dead)

    where = f"{name}, step {number}: {victim.faults.steps[first : first + number + 1][-1:]}"
    allowed = case.after_success if succeeded else case.after_failure
    dead = [each.entry for each in cluster.tables.dead_letters.values()]
    copies = cluster.copies("mail")
    if case.dead:
        assert copies + len(dead) == 1, where
    else:
        assert copies in allowed, where
        assert not dead, where
    cluster.check_marks_have_rows()
    await cluster.audit()
    cluster.check_nothing_is_left(["mail"] * len(dead))
    await cluster.close()
    return reached


async def finish_by_hand(cluster: InMemoryCluster, *, requeue: bool) -> None:
    """What a person would do after a failed command: run it again."""
    person = await cluster.start()
    await person.queue.release(ALL)
    await person.queue.republish(timedelta(seconds=1))
    if requeue:
        await person.queue.requeue(ALL)
    await cluster.recover()
