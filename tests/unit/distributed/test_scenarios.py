"""Random scenarios: operations, crashes and lost replies in any order, drawn and shrunk by
hypothesis.

On the way, browsing shows every mail that no operation changed, once, and none that was removed. At
the end, a healthy process and an administrator repair what is left; then every accepted mail was
transmitted to all its recipients, removed or is a dead letter, and no recipient got it more often
than the mail was in flight when something broke.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.queue_harness import Consumer, plain_mail
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.selection import Selector
from postroad.errors import PostroadError
from postroad.ports.mail_queue import Item
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Fault, Stopped, at

T = TypeVar("T")
ALL = Selector.all()
WHICH = st.integers(0, 1)
NO_DETAIL = [0]
KINDS: list[tuple[int, list[str], list[int]]] = [
    (6, ["enqueue"], [0, 0, 30]),
    (5, ["done", "done", "record", "reject", "keep"], NO_DETAIL),
    (2, ["retry", "record"], [0, 40]),
    (1, ["remove", "hold"], [0, 1, 2, 3]),
    (2, ["release", "flush", "requeue", "republish", "browse"], NO_DETAIL),
    (1, ["maintain"], NO_DETAIL),
    (2, ["wait"], [1, 10, 60, 700]),
    (2, ["stop", "lose", "away"], list(range(26))),
]
"""How often, which actions, on which detail. Purging is rare: it ends all that was interesting."""

ACTIONS = st.one_of(
    *(
        st.tuples(st.sampled_from(actions), WHICH, st.sampled_from(details))
        for _, actions, details in [*KINDS, (1, ["purge"], NO_DETAIL)]
    )
)
BOTH = ("b@example.net", "c@example.org")
Scenario = list[tuple[str, int, int]]
FAULTS = {"stop": Fault.STOP_AFTER, "lose": Fault.ANSWER_LOST, "away": Fault.AWAY}


@dataclass
class ItemProgress:
    """What was promised, and what may have gone wrong."""

    accepted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    maybe_gone: set[str] = field(default_factory=set)
    in_flight: Counter[str] = field(default_factory=Counter)


class ScenarioRunner:
    """Runs one scenario; at its end, `violations` must be empty."""

    def __init__(self) -> None:
        self.cluster = InMemoryCluster()
        self.ledger = ItemProgress()
        self.processes: list[Process] = []

    async def run(self, scenario: Scenario) -> list[str]:
        """Run a scenario and return the violations, at a moment when nothing is left to do."""
        self.processes = [await self.cluster.start(), await self.cluster.start()]
        for action, which, detail in scenario:
            if action == "wait":
                await self.cluster.pass_time(timedelta(seconds=detail))
            elif action in FAULTS:
                self.processes[which].fail(at(detail, FAULTS[action]))
            else:
                await self.act(action, which, detail)
        for process in self.processes:
            process.faults.stop()
        await self.cluster.recover()
        person = await self.cluster.start()
        await person.queue.release(ALL)
        await person.queue.republish(timedelta(seconds=1))
        await self.cluster.recover()
        await self.cluster.audit()
        self.cluster.check_marks_have_rows()
        self.cluster.check_nothing_is_left(self.dead_names())
        found = self.violations()
        await self.cluster.close()
        return found

    async def act(self, action: str, which: int, detail: int) -> None:
        process = self.processes[which]
        if action == "enqueue":
            await self.enqueue(process, detail)
        elif action in {"done", "record", "retry", "reject", "keep"}:
            await self.consume(process, action, detail)
        elif action in {"remove", "hold"}:
            await self.select(process, action, f"mail{detail}")
        elif action == "purge":
            await self.purge(process)
        elif action == "browse":
            await self.browse(process)
        elif action == "republish":
            await self.attempt(process.queue.republish(timedelta(seconds=5)))
        elif action == "maintain":
            await self.attempt(process.queue.maintain())
        else:
            await self.attempt(getattr(process.queue, action)(ALL))
        if process.faults.stopped:
            self.processes[which] = await self.cluster.start()

    async def attempt(self, work: Awaitable[T]) -> T | None:
        """Return what an operation returned, None when it failed or its process stopped."""
        task = asyncio.ensure_future(work)
        if not await self.cluster.outcome(task, timedelta(minutes=3)):
            task.cancel()
        try:
            return await task
        except (PostroadError, Stopped, asyncio.CancelledError):
            return None

    async def enqueue(self, process: Process, delay: int) -> None:
        name = f"mail{len(self.ledger.accepted) + len(self.ledger.refused)}"
        mail = plain_mail(name, recipients=BOTH)
        done = await self.attempt(process.queue.enqueue(mail, timedelta(seconds=delay)))
        (self.ledger.accepted if done else self.ledger.refused).append(name)

    async def select(self, process: Process, action: str, name: str) -> None:
        selector = Selector(name=name)
        if action == "hold":
            await self.attempt(process.queue.hold(selector))
            return
        self.ledger.maybe_gone.add(name)
        if await self.attempt(process.queue.remove(selector)):
            self.ledger.gone.add(name)

    async def purge(self, process: Process) -> None:
        """Dead letters are none of the mails that wait."""
        waiting = set(self.ledger.accepted) - self.dead()
        self.ledger.maybe_gone |= waiting
        if await self.attempt(process.queue.purge()) is not None:
            self.ledger.gone |= waiting

    async def browse(self, process: Process) -> None:
        async def names() -> list[str]:
            return [each.mail.name or "" async for each in process.queue.browse()]

        found = await self.attempt(names())
        if found is not None:
            ledger = self.ledger
            assert len(found) == len(set(found))
            assert not ledger.gone & set(found)
            assert set(ledger.accepted) - ledger.touched - ledger.maybe_gone <= set(found)

    def dead(self) -> set[str]:
        return set(self.dead_names())

    def dead_names(self) -> list[str]:
        dead = [each.entry for each in self.cluster.tables.dead_letters.values()]
        return [entry.envelope.name or "" for entry in dead if entry]

    async def consume(self, process: Process, how: str, delay: int) -> None:
        consumer = Consumer(self.cluster, process.queue, prefetch=1)
        item = await self.first(consumer, process)
        if item is None:
            return
        name = item.mail.name or ""
        assert name not in self.ledger.gone, f"{name} was removed and came back"
        if how in {"done", "record", "reject"}:
            self.ledger.touched.add(name)
        if how == "done":
            self.cluster.transmit(item)
            self.ledger.in_flight[name] += 1
            if await self.attempt(ended(item.done())):
                self.ledger.in_flight[name] -= 1
        elif how == "record":
            await self.record_one(item, delay)
        elif how == "retry":
            await self.attempt(ended(item.retry(timedelta(seconds=delay))))
        elif how == "reject":
            await self.attempt(ended(item.reject("no")))
        if not process.faults.stopped:
            await self.attempt(consumer.close())

    async def record_one(self, item: Item, delay: int) -> None:
        """Transmit to one recipient, and let the others wait."""
        name, recipient = item.mail.name or "", item.mail.recipients[0]
        self.cluster.transmitted[name, recipient] += 1
        self.ledger.in_flight[name] += 1
        if await self.attempt(ended(item.record({recipient: Outcome.delivered()}))):
            self.ledger.in_flight[name] -= 1
            await self.attempt(ended(item.retry(timedelta(seconds=delay))))

    async def first(self, consumer: Consumer, process: Process) -> Item | None:
        try:
            if not await consumer.nothing(timedelta(seconds=12)):
                return await consumer.next()
            await consumer.close()
        except (Stopped, StopAsyncIteration):
            assert process.faults.stopped
        return None

    def violations(self) -> list[str]:
        """Return the accepted mails that were lost, and all mails that were transmitted more often
        than processes that died in a transmission explain."""
        cluster, ledger = self.cluster, self.ledger
        excused = self.dead() | ledger.maybe_gone
        lost = [
            f"{name} was lost"
            for name in ledger.accepted
            if name not in excused and not all(cluster.transmitted[name, each] for each in BOTH)
        ]
        copies = {name: cluster.copies(name) for name in (*ledger.accepted, *ledger.refused)}
        return lost + [
            f"{name} came {count} times"
            for name, count in copies.items()
            if count > 1 + ledger.in_flight[name]
        ]


async def ended(ending: Awaitable[None]) -> bool:
    await ending
    return True


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=25))
def test_no_scenario_loses_repeats_or_resurrects_mail(scenario: Scenario) -> None:
    assert asyncio.run(ScenarioRunner().run(scenario)) == []


@pytest.mark.parametrize("seed", range(3))
def test_no_long_scenario_loses_repeats_or_resurrects_mail(seed: int) -> None:
    """Longer than hypothesis draws them: the same mails meet one fault after the other."""
    randomness = random.Random(seed)
    kinds = randomness.choices(KINDS, [weight for weight, _, _ in KINDS], k=300)
    scenario = [
        (randomness.choice(actions), randomness.randrange(2), randomness.choice(details))
        for _, actions, details in kinds
    ]
    runner = ScenarioRunner()

    found = asyncio.run(runner.run(scenario))

    assert found == []
    assert len(runner.ledger.accepted) > 50
    assert sum(len(each.faults.steps) for each in runner.cluster.processes) > 2000


def test_a_scenario_of_one_mail_ends_well() -> None:
    runner = ScenarioRunner()

    scenario = [("enqueue", 0, 0), ("retry", 1, 40), ("wait", 0, 60), ("done", 0, 0)]

    assert asyncio.run(runner.run(scenario)) == []
    assert runner.ledger.accepted == ["mail0"]
    assert runner.cluster.copies("mail0") == 1
    runner.cluster.check_nothing_is_left()


def test_lost_mail_and_second_copies_are_violations() -> None:
    runner = ScenarioRunner()
    runner.ledger.accepted = ["lost", "removed", "twice", "in flight"]
    runner.ledger.refused = ["refused"]
    runner.ledger.maybe_gone = {"removed"}
    runner.ledger.in_flight["in flight"] = 1
    for name in ("twice", "in flight", "refused"):
        for recipient in BOTH:
            runner.cluster.transmitted[name, recipient] = 2

    assert runner.violations() == ["lost was lost", "twice came 2 times", "refused came 2 times"]
