"""A store under everything at once, in any order: power cuts anywhere, against a model.

Hypothesis chooses what is done, when the power goes, and what the disk keeps; it shrinks what fails
to the shortest story.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from crash.lossy import Disk, Event, Fate, LossyFiles, survivors
from crash.world import Broken, Outside, check, start
from postroad.embedded.store.owner import OwnedQueue
from support.memory.clock import ManualClock

DELAYS = st.sampled_from([timedelta(0), timedelta(minutes=1), timedelta(hours=1)])
FATES = st.lists(st.sampled_from(["lost", "whole", "torn"]), min_size=1, max_size=6)


class CrashingStore(RuleBasedStateMachine):
    """One store over many lives. `seen` is what the world saw in all of them."""

    mails = Bundle("mails")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.seen: list[Event] = []
        self.lives = self.count = 0
        self.files: LossyFiles
        self.queue: OwnedQueue
        self.outside: Outside

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    @initialize()
    def born(self) -> None:
        self.live_on(Disk())

    def live_on(self, disk: Disk) -> None:
        """Start a process on a disk, and see that it keeps what was promised."""

        async def begin() -> None:
            self.files = LossyFiles(disk)
            self.queue = await start(self.files, self.clock, seed=self.lives)
            await self.queue.maintenance.recovering
            self.queue.engine.check()
            await check(self.queue, self.seen)
            self.outside = Outside(self.files, self.queue)

        self.lives += 1
        self.run(begin())

    @rule(target=mails, recipients=st.integers(1, 3), delay=DELAYS)
    def enqueue(self, recipients: int, delay: timedelta) -> str:
        self.count += 1
        name = f"mail{self.count}"
        self.run(self.outside.enqueue(name, recipients, delay))
        return name

    @rule(most=st.integers(1, 3))
    def lease(self, most: int) -> None:
        async def take() -> None:
            engine = self.queue.engine
            for _ in range(most):
                entry = engine.ready_queues.take(engine.elapsed())
                if entry is None:
                    return
                engine.ready_queues.give_back(entry)
                await self.outside.lease()

        self.run(take())

    @rule(mail=mails, ending=st.sampled_from(["done", "retry", "reject", "transmit", "fail"]))
    def end(self, mail: str, ending: str) -> None:
        item = self.outside.items.get(mail)
        if item is None:
            return
        first = item.mail.recipients[0]
        match ending:
            case "done":
                self.run(self.outside.done(mail))
            case "retry":
                self.run(self.outside.retry(mail, timedelta(minutes=1)))
            case "reject":
                self.run(self.outside.reject(mail))
            case "transmit":
                self.run(self.outside.transmit(mail, (first,)))
            case "fail":
                self.run(self.outside.fail(mail, item.mail.recipients[-1]))

    @rule(mail=mails, operation=st.sampled_from(["remove", "hold", "release", "flush", "requeue"]))
    def change(self, mail: str, operation: str) -> None:
        self.run(self.outside.change(operation, mail))

    @rule()
    def keep(self) -> None:
        self.run(self.queue.maintenance.round())

    @rule(minutes=st.sampled_from([1, 61]))
    def wait(self, minutes: int) -> None:
        self.run(self.clock.advance(timedelta(minutes=minutes)))

    @rule(back=st.integers(0, 25), fates=FATES)
    def power_goes(self, back: int, fates: list[Fate]) -> None:
        """The power went a few steps ago: what the world saw after that, it did not see."""
        journal = self.files.journal
        cut = max(0, len(journal.steps) - back)
        proven, pending = journal.unproven(cut)
        chosen = [fates[number % len(fates)] for number in range(len(pending))]
        self.seen += journal.events(cut)
        self.run(self.queue.close())
        self.live_on(survivors(proven, pending, chosen, f"{self.lives}"))

    @rule()
    def killed(self) -> None:
        """The process dies; the machine, and with it everything written, stays."""
        self.seen += self.files.journal.events(len(self.files.journal.steps))
        self.run(self.queue.close())
        self.live_on(self.files.disk)

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.run(self.queue.close())
        self.runner.close()


TestCrashingStore = CrashingStore.TestCase
TestCrashingStore.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


async def test_the_model_itself_knows_a_broken_promise() -> None:
    """A model that accepts everything would prove nothing."""
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    events = [Event("offered", "lost", ("a@example.net",)), Event("accepted", "lost")]

    with pytest.raises(Broken, match="P1"):
        await check(queue, events)
    await queue.close()
