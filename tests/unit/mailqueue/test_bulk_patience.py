"""A bulk change bears a view that does not answer in time: the mail is tried again, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from postroad.adapters.memory.gate import Fault, Step
from postroad.domain.selectors import Selector
from postroad.errors import ViewUnavailable
from postroad.mailqueue.changes import TRIES
from support.post import LONG, Post, Process

ALL = Selector.all()
MAILS = ("a", "b", "c", "d")


def every_other(operation: str, fault: Fault) -> Callable[[Step], Fault | None]:
    """Let every other step of one name go wrong, beginning with the first."""
    met = [0]

    def plan(step: Step) -> Fault | None:
        met[0] += step.operation == operation
        return fault if step.operation == operation and met[0] % 2 else None

    return plan


async def hold(post: Post, process: Process) -> int:
    work = asyncio.ensure_future(process.queue.hold(ALL))
    assert await post.outcome(work, LONG)
    return work.result()


@pytest.mark.parametrize("operation", ["end", "insert", "mark_published"])
@pytest.mark.parametrize("fault", [Fault.AWAY, Fault.ANSWER_LOST])
async def test_step_that_times_out_is_tried_again_and_its_mail_counted_once(
    post: Post, process: Process, operation: str, fault: Fault
) -> None:
    await post.enqueue(process, *MAILS)
    process.gate.plan = every_other(operation, fault)

    assert await hold(post, process) == len(MAILS)

    live = post.tables.live()
    assert sorted(turn.envelope.name or "" for turn in live) == sorted(MAILS)
    assert all(turn.held for turn in live)


async def test_mail_that_ended_meanwhile_is_not_counted(post: Post, process: Process) -> None:
    """The ending whose answer was lost was not carried out, and another one was first."""
    await post.enqueue(process, "a")
    other = await post.start()
    asked = [0]

    async def before(step: Step) -> None:
        asked[0] += step.operation == "end"
        if step.operation == "end" and asked[0] == 2:
            assert await other.queue.remove(ALL) == 1

    process.gate.before = before
    process.gate.plan = every_other("end", Fault.AWAY)

    assert await hold(post, process) == 0
    assert post.tables.live() == []


async def test_server_that_stays_away_ends_it_within_bounds(post: Post, process: Process) -> None:
    await post.enqueue(process, "a")
    process.gate.plan = lambda step: Fault.AWAY if step.operation == "end" else None
    first, began = len(process.gate.steps), post.clock.elapsed()

    with pytest.raises(ViewUnavailable):
        await hold(post, process)

    assert [each.operation for each in process.gate.steps[first:]].count("end") == TRIES
    assert post.clock.elapsed() - began < timedelta(minutes=1)
