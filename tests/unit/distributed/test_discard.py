"""Dead letters are discarded with their bytes, whatever stops half way or meets whom."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.fault_injection import Fault, Step, Stopped, at
from postroad.distributed import dead_letters
from postroad.domain.entries import Ending, EndingKind, Mark
from postroad.domain.selection import Selector
from postroad.errors import PostroadError
from postroad.ports.view import DeadLetter
from support.in_memory_cluster import Before, Post, Process

ALL = Selector.all()
MINUTE = timedelta(minutes=1)


async def bury(post: Post, process: Process, *names: str) -> None:
    await post.enqueue(process, *names)
    consumer = Consumer(post, process.queue)
    for _ in names:
        await (await consumer.next()).reject("no")
    await consumer.close()


async def test_discard_takes_letter_and_bytes_at_once(post: Post, process: Process) -> None:
    await bury(post, process, "one", "two")

    assert await process.queue.discard(Selector(name="one")) == 1

    post.check_nothing_is_left(["two"])


@pytest.mark.parametrize(
    ("kind", "letters_left"), [(EndingKind.REMOVED, 0), (EndingKind.UNKNOWN, 1)]
)
async def test_discard_of_a_letter_whose_mail_ended_otherwise_takes_the_letter_alone(
    post: Post, process: Process, kind: EndingKind, letters_left: int
) -> None:
    """One whose mail ended in a way that this release cannot decode stays."""
    await bury(post, process, "mail")
    (letter,) = post.tables.letters.values()
    assert letter.turn is not None
    post.tables.marks[letter.turn.key] = Mark(ending=Ending(kind, post.clock.now()))

    assert await process.queue.discard(ALL) == 0

    assert len(post.tables.letters) == letters_left
    assert len(post.blobs) == 1


@pytest.mark.parametrize("fault", [Fault.STOP_AFTER, Fault.AWAY, Fault.ANSWER_LOST])
async def test_discard_that_stops_at_any_step_is_finished_by_repeating_it(fault: Fault) -> None:
    for number in range(12):
        post = Post()
        process, victim = await post.start(), await post.start()
        await bury(post, process, "mail")
        victim.fail(at(number, fault))
        with suppress(Stopped, PostroadError):
            await victim.queue.discard(ALL)
        await post.pass_time(3 * MINUTE)

        await process.queue.discard(ALL)
        for _ in range(4):  # until the rejected turn is cleaned
            await process.queue.maintain()
            await post.pass_time(10 * MINUTE)
        await post.audit()

        assert await post.recover() == []
        post.check_nothing_is_left()
        await post.close()


@pytest.mark.parametrize("operation", ["claim", "letter", "limits", "end", "unbury", "delete"])
async def test_discard_and_requeue_at_once_leave_a_whole_mail_or_none(
    post: Post, process: Process, operation: str
) -> None:
    await bury(post, process, "mail")
    other = await post.start()
    counts: list[int] = []

    async def requeue() -> None:
        counts.append(await other.queue.requeue(ALL))

    process.gate.before = Before(operation, requeue)
    counts.append(await process.queue.discard(ALL))
    process.gate.before = None
    delivered = await post.recover()

    assert sum(counts) == 1
    assert delivered == (["mail"] if counts[0] else [])
    post.check_nothing_is_left()


async def test_suspended_discard_takes_no_bytes_of_a_mail_requeued_meanwhile(
    post: Post, process: Process
) -> None:
    await bury(post, process, "mail")
    other = await post.start()

    async def sleep() -> None:
        await post.pass_time(3 * MINUTE)
        assert await other.queue.requeue(ALL) == 1

    process.gate.before = Before("unbury", sleep)
    await process.queue.discard(ALL)

    assert await post.recover() == ["mail"]


async def with_a_letter_that_came_back(post: Post, process: Process) -> None:
    """A mail waits that was requeued, and its letter is there again, as a Cassandra node brings it
    back that was away for longer than the others keep the deletion. A mail that is held for longer
    keeps browse start, so that the mark of the letter's turn is there too."""
    await post.enqueue(process, "held")
    await process.queue.hold(ALL)
    await bury(post, process, "mail")
    [letter] = post.tables.letters.values()
    assert await process.queue.requeue(ALL) == 1
    post.tables.bury(letter)


@pytest.mark.parametrize("days", [0, 5])
async def test_letter_that_came_back_is_discarded_without_the_bytes_of_the_requeued_mail(
    post: Post, process: Process, days: int
) -> None:
    await with_a_letter_that_came_back(post, process)
    await post.pass_time(timedelta(days=days))

    assert await process.queue.discard(ALL) == 0

    assert post.tables.letters == {}
    assert "mail" in await post.recover()
    assert post.copies("mail") == 1


async def test_letter_that_came_back_is_not_requeued_again(post: Post, process: Process) -> None:
    await with_a_letter_that_came_back(post, process)

    assert await process.queue.requeue(ALL) == 0

    assert post.tables.letters == {}
    assert await post.recover() == ["mail"]
    assert post.copies("mail") == 1


async def test_letter_that_came_back_half_requeued_is_not_gone_on_with(
    post: Post, process: Process
) -> None:
    """The node had seen the requeue begin."""
    await bury(post, process, "mail")
    seen: list[DeadLetter] = []

    async def see() -> None:
        seen.extend(post.tables.letters.values())

    process.gate.before = Before("publish", see)
    assert await process.queue.requeue(ALL) == 1
    assert await post.deliver(process) == ["mail"]
    post.tables.bury(seen[0])

    await post.pass_time(20 * MINUTE)
    assert await post.recover() == []

    assert post.tables.letters == {}
    assert post.copies("mail") == 1


async def test_letter_of_a_release_without_notes_that_came_back_leaves_bytes_to_the_audit(
    post: Post, process: Process
) -> None:
    """Nothing tells that it was requeued but its age."""
    await with_a_letter_that_came_back(post, process)
    post.tables.gone.clear()
    for _ in range(10 * 24):
        await post.pass_time(60 * MINUTE)
    [letter] = post.tables.letters.values()
    assert letter.turn is not None
    assert not (await process.queue._engine.bearings.limits()).have_passed(
        letter.turn.key.slice_start
    )

    assert await process.queue.discard(ALL) == 1

    assert letter.turn.blob_key in post.blobs


async def test_letter_that_a_suspended_consumer_buries_again_takes_nothing_of_the_requeued_mail(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "held")
    await process.queue.hold(ALL)
    await post.enqueue(process, "mail")
    victim, other = await post.start(), await post.start()
    consumer, item = await post.take(victim)
    victim.gate.plan = lambda step: Fault.AWAY if step.operation == "claim" else None

    async def sleep() -> None:
        turn = post.tables.live()[-1]
        await dead_letters.bury(other.queue._engine, turn, turn.envelope, "too often")
        await post.pass_time(3 * MINUTE)
        assert await other.queue.requeue(ALL) == 1

    victim.gate.before = Before("bury", sleep)
    await item.reject("no")
    await consumer.close()

    assert await process.queue.discard(ALL) == 0
    assert await post.recover() == ["mail"]


async def test_letter_that_a_requeue_left_half_way_is_not_discarded(
    post: Post, process: Process
) -> None:
    await bury(post, process, "mail")
    victim = await post.start()
    victim.gate.plan = lambda step: Fault.STOP_AFTER if step.operation == "publish" else None
    with pytest.raises(Stopped):
        await victim.queue.requeue(ALL)
    await post.pass_time(3 * MINUTE)

    assert await process.queue.discard(ALL) == 0

    assert await post.recover() == ["mail"]


async def test_mail_rejected_in_a_claimed_turn_can_be_requeued_and_discarded_at_once(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "mail", "other")
    consumer = Consumer(post, process.queue)
    for _ in range(2):
        await (await consumer.next()).retry(timedelta(0))
    for _ in range(2):
        await (await consumer.next()).reject("no")

    assert await process.queue.requeue(Selector(name="mail")) == 1
    assert await process.queue.discard(Selector(name="other")) == 1
    await consumer.close()


async def test_claim_renewed_while_a_slow_item_is_rejected_is_given_back_too(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "slow")
    consumer = Consumer(post, process.queue)
    item = await consumer.next()

    async def reject(step: Step) -> None:
        if step.operation == "claim":
            process.gate.before = None
            await item.reject("no")

    process.gate.before = reject
    await post.pass_time(10 * timedelta(seconds=1))

    assert await process.queue.requeue(ALL) == 1
    await consumer.close()
