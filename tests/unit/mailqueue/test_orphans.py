"""Mails without a message: upkeep gives them one, and disturbs nothing that has one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.gate import Fault
from postroad.domain import orphans
from postroad.domain.orphans import STEADY
from postroad.domain.selectors import Selector
from postroad.mailqueue.tending import EVERY
from support.post import Post, Process

ALL = Selector.all()
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


async def test_broker_that_lost_everything_gets_it_back_a_bounded_number_at_a_time(
    post: Post, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "AT_MOST", 5)
    names = [f"mail{number}" for number in range(8)]
    await post.enqueue(process, *names)
    post.broker.lose_everything()

    await looks(post, process, STEADY)
    assert len(post.broker.ready) + post.broker.delayed == 5
    first = await post.deliver(process, MINUTE)
    await looks(post, process, STEADY)

    assert sorted(first + await post.deliver(process, MINUTE)) == sorted(names)
    assert set(post.transmitted.values()) == {1}


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
