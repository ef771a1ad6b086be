"""Whole stories: operations, crashes and lost answers in any order, drawn and shrunk by hypothesis.

At the end of each, a healthy process and a person put things right; then every accepted mail was
transmitted, removed or is a dead letter, and none was transmitted more often than it was in flight
when something broke.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from contract.queue_harness import Consumer
from postroad.adapters.memory.gate import Fault, Stopped, at
from postroad.domain.selectors import Selector
from postroad.errors import PostroadError
from postroad.ports.queue import Item
from support.post import Post, Process

T = TypeVar("T")
ALL = Selector.all()
WHICH = st.integers(0, 1)
MAIL = st.integers(0, 3)
ACTIONS = st.one_of(
    st.tuples(st.just("enqueue"), WHICH, st.sampled_from([0, 0, 30])),
    st.tuples(st.sampled_from(["done", "reject", "keep"]), WHICH, st.just(0)),
    st.tuples(st.just("retry"), WHICH, st.sampled_from([0, 40])),
    st.tuples(st.sampled_from(["remove", "hold"]), WHICH, MAIL),
    st.tuples(st.sampled_from(["release", "flush", "requeue", "republish"]), WHICH, st.just(0)),
    st.tuples(st.just("maintain"), WHICH, st.just(0)),
    st.tuples(st.just("wait"), st.just(0), st.sampled_from([1, 10, 60, 700])),
    st.tuples(st.sampled_from(["stop", "lose", "away"]), WHICH, st.integers(0, 25)),
)
Story = list[tuple[str, int, int]]
FAULTS = {"stop": Fault.STOP_AFTER, "lose": Fault.ANSWER_LOST, "away": Fault.AWAY}


@dataclass
class Ledger:
    """What was promised, and what may have gone wrong."""

    accepted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    maybe_gone: set[str] = field(default_factory=set)
    in_flight: Counter[str] = field(default_factory=Counter)


class Teller:
    """Tells one story."""

    def __init__(self) -> None:
        self.post = Post()
        self.ledger = Ledger()
        self.processes: list[Process] = []

    async def tell(self, story: Story) -> None:
        self.processes = [await self.post.start(), await self.post.start()]
        for action, which, detail in story:
            if action == "wait":
                await self.post.pass_time(timedelta(seconds=detail))
            elif action in FAULTS:
                self.processes[which].fail(at(detail, FAULTS[action]))
            else:
                await self.act(action, which, detail)
        for process in self.processes:
            process.gate.stop()
        await self.post.recover()
        person = await self.post.start()
        await person.queue.release(ALL)
        await person.queue.republish(timedelta(seconds=1))
        await self.post.recover()
        self.check()
        await self.post.close()

    async def act(self, action: str, which: int, detail: int) -> None:
        process = self.processes[which]
        if action == "enqueue":
            await self.enqueue(process, detail)
        elif action in {"done", "retry", "reject", "keep"}:
            await self.consume(process, action, detail)
        elif action in {"remove", "hold"}:
            await self.select(process, action, f"mail{detail}")
        elif action == "republish":
            await self.attempt(process.queue.republish(timedelta(seconds=5)))
        elif action == "maintain":
            await self.attempt(process.queue.maintain())
        else:
            await self.attempt(getattr(process.queue, action)(ALL))
        if process.gate.stopped:
            self.processes[which] = await self.post.start()

    async def attempt(self, work: Awaitable[T]) -> T | None:
        """Return what an operation returned, None when it failed or its process stopped."""
        task = asyncio.ensure_future(work)
        if not await self.post.outcome(task, timedelta(minutes=3)):
            task.cancel()
        try:
            return await task
        except (PostroadError, Stopped, asyncio.CancelledError):
            return None

    async def enqueue(self, process: Process, delay: int) -> None:
        name = f"mail{len(self.ledger.accepted) + len(self.ledger.refused)}"
        done = await self.attempt(self.post.enqueue(process, name, delay=delay))
        (self.ledger.accepted if done else self.ledger.refused).append(name)

    async def select(self, process: Process, action: str, name: str) -> None:
        selector = Selector(name=name)
        if action == "hold":
            await self.attempt(process.queue.hold(selector))
            return
        self.ledger.maybe_gone.add(name)
        if await self.attempt(process.queue.remove(selector)):
            self.ledger.gone.add(name)

    async def consume(self, process: Process, how: str, delay: int) -> None:
        consumer = Consumer(self.post, process.queue, prefetch=1)
        item = await self.first(consumer)
        if item is None:
            return
        name = item.mail.name or ""
        assert name not in self.ledger.gone, f"{name} was removed and came back"
        if how == "done":
            self.post.transmit(item)
            self.ledger.in_flight[name] += 1
            if await self.attempt(ended(item.done())):
                self.ledger.in_flight[name] -= 1
        elif how == "retry":
            await self.attempt(ended(item.retry(timedelta(seconds=delay))))
        elif how == "reject":
            await self.attempt(ended(item.reject("no")))
        if not process.gate.stopped:
            await self.attempt(consumer.close())

    async def first(self, consumer: Consumer) -> Item | None:
        try:
            if not await consumer.nothing(timedelta(seconds=12)):
                return await consumer.next()
            await consumer.close()
        except Stopped:
            pass
        return None

    def check(self) -> None:
        post, ledger = self.post, self.ledger
        dead = [each.turn for each in post.tables.letters.values()]
        buried = {turn.envelope.name or "" for turn in dead if turn}
        for name in ledger.accepted:
            copies = post.copies(name)
            assert copies or name in buried | ledger.maybe_gone, f"{name} was lost"
            assert copies <= 1 + ledger.in_flight[name], f"{name} came {copies} times"
        for name in ledger.refused:
            assert post.copies(name) <= 1 + ledger.in_flight[name], f"{name} came too often"
        post.check_marks_have_rows()
        assert post.tables.live() == []


async def ended(ending: Awaitable[None]) -> bool:
    await ending
    return True


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=25))
def test_no_story_loses_repeats_or_resurrects_mail(story: Story) -> None:
    asyncio.run(Teller().tell(story))


def test_a_story_of_one_mail_ends_well() -> None:
    teller = Teller()

    asyncio.run(teller.tell([("enqueue", 0, 0), ("retry", 1, 40), ("wait", 0, 60), ("done", 0, 0)]))

    assert teller.ledger.accepted == ["mail0"]
    assert teller.post.copies("mail0") == 1
    teller.post.check_nothing_is_left()
