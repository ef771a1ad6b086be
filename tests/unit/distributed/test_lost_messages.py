"""Mails without a message: upkeep gives them one, and disturbs nothing that has one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.fault_injection import Fault, Step
from postroad.distributed.row_maintenance import EVERY
from postroad.domain.lost_messages import STEADY
from postroad.domain.selection import Selector
from support.in_memory_cluster import Post, Process

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


async def looks(post: Post, process: Process, count: int) -> None:
    for _ in range(count):
        await post.pass_time(EVERY)
        await process.queue.maintain()


async def killed_before_the_publish(post: Post, name: str = "orphan", delay: float = 0) -> None:
    victim = await post.start()
    victim.fail(lambda step: Fault.STOP_AFTER if step.operation == "insert" else None)
    await asyncio.wait([asyncio.ensure_future(post.enqueue(victim, name, delay=delay))])
    assert victim.gate.stopped


async def test_row_of_a_process_that_was_killed_before_its_publish_is_delivered_once(
    post: Post, process: Process
) -> None:
    await killed_before_the_publish(post)

    await looks(post, process, STEADY - 1)
    assert await post.deliver(process, MINUTE) == []
    await looks(post, process, 1)

    assert await post.deliver(process, MINUTE) == ["orphan"]
    await looks(post, process, 2 * STEADY)
    assert await post.deliver(process, MINUTE) == []
    post.check_nothing_is_left()


async def test_delayed_row_without_a_message_comes_when_it_is_due(
    post: Post, process: Process
) -> None:
    await killed_before_the_publish(post, delay=7200)

    await looks(post, process, STEADY)
    assert await post.deliver(process, HOUR) == []
    assert await post.deliver(process, HOUR) == ["orphan"]


async def test_mails_that_have_their_messages_are_left_alone(post: Post, process: Process) -> None:
    """In hand for long, delayed, due; and one that is held, which has none."""
    await post.enqueue(process, "in hand")
    consumer, item = await post.take(process)
    other = await post.start()
    await post.enqueue(other, "held")
    await other.queue.hold(Selector(name="held"))
    await consumer.close()
    assert await post.deliver(other, MINUTE) == []  # the message of the held one goes away
    await post.enqueue(other, "delayed", delay=10**6)
    await post.enqueue(other, "due")
    before = {turn.key for turn in post.tables.live()}
    assert post.broker.unacked + len(post.broker.ready) + post.broker.delayed == 3

    await looks(post, other, 3 * STEADY)

    assert {turn.key for turn in post.tables.live()} == before
    assert len(before) == 4
    await item.done()


async def test_orphan_among_many_is_found_and_nothing_comes_twice(
    post: Post, process: Process
) -> None:
    """A mail in a worker's hands is among those that get a new turn."""
    await post.enqueue(process, "in hand", *(f"mail{number}" for number in range(5)))
    await killed_before_the_publish(post)
    worker = await post.start()
    consumer = Consumer(post, worker.queue, prefetch=1)
    item = await consumer.next()
    await post.pass_time(MINUTE)

    await looks(post, process, STEADY)
    other = await post.deliver(await post.start())
    post.transmit(item)
    await item.done()
    await consumer.close()
    await post.recover()

    assert "orphan" in other
    assert set(post.transmitted.values()) == {1}
    assert len(post.transmitted) == 7
    post.check_nothing_is_left()


def replaced(process: Process) -> int:
    return [step.operation for step in process.gate.steps].count("end")


async def test_broker_that_lost_everything_gets_all_of_it_back_in_one_round(
    post: Post, process: Process
) -> None:
    names = [f"mail{number}" for number in range(250)]
    await post.enqueue(process, *names)
    post.broker.lose_everything()

    await looks(post, process, STEADY)

    assert sorted(await post.deliver(process, MINUTE)) == sorted(names)
    assert set(post.transmitted.values()) == {1}
    post.check_nothing_is_left()


async def test_several_processes_do_not_multiply_the_work(post: Post, process: Process) -> None:
    await post.enqueue(process, *(f"mail{number}" for number in range(150)))
    post.broker.lose_everything()
    others = [await post.start() for _ in range(3)]

    for _ in range(STEADY + 1):
        await post.pass_time(EVERY)
        await asyncio.gather(*(each.queue.maintain() for each in [process, *others]))

    assert len(post.broker.ready) + post.broker.delayed == 150
    assert sum(replaced(each) for each in [process, *others]) == 150


async def test_process_that_dies_over_it_is_relieved(post: Post, process: Process) -> None:
    names = [f"mail{number}" for number in range(40)]
    await post.enqueue(process, *names)
    post.broker.lose_everything()
    victim = await post.start()
    await looks(post, victim, STEADY - 1)
    await looks(post, process, STEADY - 1)
    victim.fail(lambda step: Fault.STOP_BEFORE if step.operation == "end" else None)
    await asyncio.wait([asyncio.ensure_future(looks(post, victim, 1))])
    assert victim.gate.stopped

    await looks(post, process, 3)

    assert sorted(await post.deliver(process, MINUTE)) == sorted(names)


async def test_round_of_upkeep_does_not_wait_for_all_of_many(post: Post, process: Process) -> None:
    """Each publish takes a second here; the next look goes on at once."""
    await post.enqueue(process, *(f"mail{number}" for number in range(700)))
    post.broker.lose_everything()

    async def slow(step: Step) -> None:
        if step.operation == "publish":
            process.clock.jump(SECOND)

    process.gate.before = slow
    healed = []
    for _ in range(STEADY + 2):
        await looks(post, process, 1)
        healed.append(replaced(process))

    assert healed[: STEADY - 1] == [0] * (STEADY - 1)
    assert 300 <= healed[STEADY - 1] < 350
    assert 600 <= healed[STEADY] < 700
    assert healed[STEADY + 1] == 700


async def test_broker_that_does_not_count_what_is_leased_is_not_judged(
    post: Post, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = process.queue._engine.broker
    depths = broker.depths

    async def partial() -> object:
        return replace(await depths(), leased_included=False)

    monkeypatch.setattr(broker, "depths", partial)
    await killed_before_the_publish(post)

    await looks(post, process, 2 * STEADY)

    assert await post.deliver(process, MINUTE) == []


async def test_broker_that_is_away_keeps_nothing_else_from_its_turn(
    post: Post, process: Process
) -> None:
    await killed_before_the_publish(post)
    await looks(post, process, STEADY - 1)
    process.gate.plan = lambda step: Fault.AWAY if step.operation == "depths" else None

    await looks(post, process, 1)

    process.gate.plan = lambda step: None
    await looks(post, process, STEADY - 1)
    assert len(post.tables.live()) == 1
    assert await post.deliver(process, MINUTE) == []
