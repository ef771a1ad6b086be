"""What goes wrong with one mail in a round of upkeep stays with that mail; what goes wrong with a
server ends the part of the round, and nothing is held on to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from contract.queue_harness import Consumer, letter
from postroad.adapters.memory.broker import Message
from postroad.adapters.memory.fault_injection import Fault, Step, away, no_fault
from postroad.distributed.concurrency import AT_ONCE
from postroad.distributed.dead_queue import KEPT_BYTES
from postroad.distributed.mail_errors import IN_A_ROW, MOST
from postroad.domain.mail import Outcome
from postroad.domain.selection import Selector
from postroad.errors import BrokerUnavailable, ViewRefused, ViewUnavailable
from postroad.telemetry import metrics
from support.in_memory_cluster import NAME, WINDOW, Post, Process

ALL = Selector.all()
MINUTE = timedelta(minutes=1)
LIFETIME = timedelta(hours=2)


class DriverBug(Exception):
    """No error that postroad knows."""


@pytest.fixture
async def post() -> AsyncIterator[Post]:
    post = Post()
    post.tables.row_lifetime = LIFETIME
    yield post
    await post.close()


def break_at(process: Process, operation: str, times: int = 1) -> None:
    """Let a step raise what nobody foresaw."""
    left = [times]

    async def before(step: Step) -> None:
        if step.operation == operation and left[0]:
            left[0] -= 1
            raise DriverBug(operation)

    process.gate.before = before


def troubles() -> float:
    return float(metrics.TROUBLES.labels(str(NAME))._value.get())


async def wait_half_a_lifetime(post: Post) -> None:
    await post.pass_time(LIFETIME / 2 + MINUTE)


async def test_mail_that_cannot_be_rolled_forward_keeps_no_other_from_it(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "bad", "good", "better", delay=10**6)
    await wait_half_a_lifetime(post)
    break_at(process, "end")
    before = troubles()

    await process.queue.maintain()

    old = [turn for turn in post.tables.live() if turn.accepted_at == turn.enqueued_at]
    assert [turn.envelope.name for turn in old] == ["bad"]
    assert troubles() == before + 1


async def test_trouble_with_very_many_mails_keeps_no_other_from_being_tended_and_is_raised(
    post: Post, process: Process
) -> None:
    """What is never rolled forward is lost when its row expires."""
    bad = [f"bad{number}" for number in range(MOST + 1)]
    await post.enqueue(process, *bad, "good", "better", delay=10**6)
    await wait_half_a_lifetime(post)
    order = [turn.envelope.name for turn in sorted(post.tables.live(), key=lambda t: t.enqueue_id)]
    assert order[-2:] == ["good", "better"]
    break_at(process, "end", times=len(bad))
    before = troubles()

    with pytest.raises(DriverBug):
        await process.queue.maintain()

    old = [turn for turn in post.tables.live() if turn.accepted_at == turn.enqueued_at]
    assert sorted(turn.envelope.name or "" for turn in old) == sorted(bad)
    assert troubles() == before + len(bad)


async def test_server_that_is_away_ends_the_round_at_once(post: Post, process: Process) -> None:
    await post.enqueue(process, *(f"mail{number}" for number in range(100)), delay=10**6)
    await wait_half_a_lifetime(post)
    process.gate.plan = lambda step: Fault.AWAY if step.operation == "end" else None
    first = len(process.gate.steps)

    with pytest.raises(ViewUnavailable):
        await process.queue.maintain()

    tried = [step.operation for step in process.gate.steps[first:]].count("end")
    assert tried < IN_A_ROW + AT_ONCE
    process.gate.plan = no_fault
    await process.queue.maintain()
    assert not [turn for turn in post.tables.live() if turn.accepted_at == turn.enqueued_at]


@pytest.mark.parametrize("mails", [1, 50])
async def test_server_that_failed_for_every_mail_is_asked_again_in_the_next_round(
    post: Post, process: Process, mails: int
) -> None:
    await post.enqueue(process, *(f"mail{number}" for number in range(mails)), delay=10**6)
    await wait_half_a_lifetime(post)
    process.gate.plan = away("broker")
    with pytest.raises(BrokerUnavailable):
        await process.queue.maintain()
    process.gate.plan = no_fault

    await post.pass_time(2 * MINUTE)
    await process.queue.maintain()

    assert not [turn for turn in post.tables.live() if turn.accepted_at == turn.enqueued_at]
    assert all(mark.is_final for mark in post.tables.marks.values())


async def test_server_error_of_one_mail_keeps_no_other_from_being_tended(
    post: Post, process: Process
) -> None:
    """As when one delay queue of the ladder is missing."""
    await post.enqueue(process, "bad", "good", "better", delay=10**6)
    await wait_half_a_lifetime(post)
    left = [1]

    def no_route(step: Step) -> Fault | None:
        left[0] -= step.operation == "publish"
        return Fault.AWAY if step.operation == "publish" and left[0] == 0 else None

    process.gate.plan = no_route
    before = troubles()

    await process.queue.maintain()

    names = sorted(post.tables.rows[key].envelope.name or "" for key in post.tables.marks)
    assert names == ["bad", "better", "good"]
    assert troubles() == before + 1


async def test_old_mails_are_rolled_forward_several_at_once(
    post: Post, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await post.enqueue(process, *(f"mail{number}" for number in range(50)), delay=10**6)
    await wait_half_a_lifetime(post)
    running, most = 0, 0
    end = process.queue._engine.view.end

    async def slow_end(*args: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10):
            await asyncio.sleep(0)
        running -= 1
        return await end(*args)

    monkeypatch.setattr(process.queue._engine.view, "end", slow_end)
    await process.queue.maintain()

    assert most == AT_ONCE
    assert not [turn for turn in post.tables.live() if turn.accepted_at == turn.enqueued_at]


async def test_letter_that_cannot_be_tended_keeps_no_other_from_it(
    post: Post, process: Process
) -> None:
    """Both burials stopped between letter and mark."""
    await post.enqueue(process, "bad", "good")
    consumer = Consumer(post, process.queue)
    for item in [await consumer.next(), await consumer.next()]:
        await item.reject("no")
    post.tables.marks.clear()
    break_at(process, "letter")

    await process.queue.maintain()

    marked = {post.tables.rows[key].envelope.name for key in post.tables.marks}
    assert marked == {"good"}
    await consumer.close()


async def test_mail_that_cannot_be_settled_keeps_its_slice_and_nothing_else(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "mail")
    _, item = await post.take(process)
    break_at(process, "insert")
    with pytest.raises(DriverBug):
        await item.retry(timedelta(0))
    start = post.tables.limits.browse_start
    await post.pass_time(4 * WINDOW)
    process.queue._upkeep._tending._due = timedelta(days=1)
    break_at(process, "change_successor")

    await process.queue.maintain()
    ((held_back, *_), before) = sorted({key.slice_start for key in post.tables.rows}), start
    assert post.tables.limits.browse_start is not None
    assert before is not None
    assert before < post.tables.limits.browse_start <= held_back

    for _ in range(3):
        await post.pass_time(WINDOW)
        await process.queue.maintain()
    assert post.tables.limits.have_passed(held_back)


async def test_message_that_breaks_its_handling_is_a_dead_letter_and_blocks_no_other(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "bad", "good")
    post.broker.dead.extend(post.broker.ready)
    post.broker.ready.clear()
    break_at(process, "mark")

    await process.queue.maintain()

    (view,) = [each async for each in process.queue.dead_letters()]
    assert view.reason is not None
    assert "DriverBug" in view.reason
    assert await post.deliver(process, MINUTE) == ["good"]
    assert await process.queue.requeue(ALL) == 1
    assert await post.deliver(process, MINUTE) == ["bad"]
    post.check_nothing_is_left()


async def test_message_that_the_view_cannot_keep_whole_is_cut_and_blocks_no_other(
    post: Post, process: Process
) -> None:
    """Cassandra refuses what is larger than half a commit log segment."""
    garbage = b"x" * (KEPT_BYTES + 1)
    post.broker.dead.append(Message(UUID(int=1), garbage))
    post.broker.dead.append(Message(UUID(int=2), b"small"))
    left = [1]

    async def refuse_first(step: Step) -> None:
        if step.operation == "bury" and left[0]:
            left[0] -= 1
            raise ViewRefused("the mutation is too large")

    process.gate.before = refuse_first

    await process.queue.maintain()

    cut, small = sorted(post.tables.letters.values(), key=lambda each: -len(each.body or b""))
    assert cut.body == garbage[:KEPT_BYTES]
    assert str(len(garbage)) in cut.reason
    assert small.body == b"small"
    assert len(post.broker.dead) == post.broker.unacked_dead == 0


async def test_messages_of_the_dead_queue_are_given_back_when_a_round_ends_early(
    post: Post, process: Process
) -> None:
    post.broker.dead.append(Message(UUID(int=1), b"garbage"))
    process.gate.plan = away("view")
    with pytest.raises(ViewUnavailable):
        await process.queue.maintain()

    assert (len(post.broker.dead), post.broker.unacked_dead) == (1, 0)
    process.gate.plan = no_fault
    await process.queue.maintain()
    assert len(post.tables.letters) == 1


async def test_delivery_records_live_as_long_as_the_mail_that_needs_them(
    post: Post, process: Process
) -> None:
    """Cassandra forgets a record a row's lifetime after it was written; a held mail is kept."""
    both = ("one@example.net", "two@example.net")
    await process.queue.enqueue(letter("mail", recipients=both))
    consumer, item = await post.take(process)
    assert await process.queue.hold(ALL) == 1
    await item.record(both[:1], Outcome.delivered("250"))
    await item.retry(timedelta(0))
    await consumer.close()

    written = post.clock.now()

    async def note_writing(step: Step) -> None:
        nonlocal written
        if step.operation == "record":
            written = post.clock.now()

    process.gate.before = note_writing
    for _ in range(5):
        await wait_half_a_lifetime(post)
        await process.queue.maintain()
        if post.clock.now() - written >= LIFETIME:
            post.tables.records.clear()

    await process.queue.release(ALL)
    _, again = await post.take(process)
    assert again.mail.recipients == both[1:]
