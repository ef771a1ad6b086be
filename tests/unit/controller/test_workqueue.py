"""The queue of looks: one reconcile per object at a time, none lost, changes before routine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import pairwise

import pytest

from postroad.controller.run.workqueue import MIN_INTERVAL_SECONDS, Urgency, Workqueue
from support.manual_loop import move, run


class Middling:
    """Randomness without any."""

    def uniform(self) -> float:
        return 0.5

    def bits(self, count: int) -> int:
        return 0


def run_work(
    reconcile: Callable[[str], Awaitable[timedelta | None]],
    begin: Callable[[Workqueue[str]], None],
    until: Callable[[], bool],
    tasks: int = 2,
) -> None:
    """Run a queue of keys `SERVERS.NAME` or `NAME`, for ten seconds at most."""

    async def scene() -> None:
        work: Workqueue[str] = Workqueue(reconcile, Middling(), lambda key: key.split(".")[0])
        begin(work)
        running = asyncio.create_task(work.run(tasks))
        for _ in range(100):
            await move(0.1)
            if until():
                break
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run(scene())


def test_many_events_of_one_object_are_one_look() -> None:
    reconciled: list[str] = []

    async def reconcile(key: str) -> None:
        reconciled.append(key)

    def begin(work: Workqueue[str]) -> None:
        for key in ("a", "a", "b", "a"):
            work.add(key)

    run_work(reconcile, begin, lambda: len(reconciled) == 2)

    assert sorted(reconciled) == ["a", "b"]


def test_an_object_is_never_looked_at_twice_at_once_and_a_late_event_is_not_lost() -> None:
    reconciled, running, together = 0, 0, 0
    works: list[Workqueue[str]] = []

    async def reconcile(key: str) -> None:
        nonlocal reconciled, running, together
        running += 1
        together = max(together, running)
        reconciled += 1
        if reconciled == 1:
            works[0].add(key)
        for _ in range(5):
            await asyncio.sleep(0.005)
        running -= 1

    def begin(work: Workqueue[str]) -> None:
        works.append(work)
        work.add("a")

    run_work(reconcile, begin, lambda: reconciled >= 2 and running == 0, tasks=3)

    assert (reconciled, together) == (2, 1)


def test_a_change_goes_before_children_and_these_before_routine() -> None:
    reconciled: list[str] = []

    async def reconcile(key: str) -> None:
        reconciled.append(key)

    def begin(work: Workqueue[str]) -> None:
        for key in ("r1", "r2", "r3", "r4"):
            work.add(key, Urgency.ROUTINE)
        for key in ("child", "r4"):
            work.add(key, Urgency.CHILD)
        work.add("changed")
        work.add("r3")
        work.add("changed", Urgency.ROUTINE)

    run_work(reconcile, begin, lambda: len(reconciled) >= 6, tasks=1)

    assert reconciled == ["changed", "r3", "child", "r4", "r1", "r2"]


def test_a_key_that_is_changed_while_it_is_reconciled_keeps_its_urgency() -> None:
    async def scene() -> None:
        reconciled: list[str] = []

        async def reconcile(key: str) -> None:
            reconciled.append(key)
            if reconciled == ["a"]:
                for each in ("a", "slow"):
                    work.add(each)
                work.add("a", Urgency.ROUTINE)
            if key == "slow":
                work.add("child", Urgency.CHILD)
                await asyncio.sleep(3)

        work: Workqueue[str] = Workqueue(reconcile, Middling(), lambda key: key)
        work.add("a")
        tasks = asyncio.create_task(work.run(1))
        await move(6)

        assert reconciled == ["a", "slow", "a", "child"]
        tasks.cancel()
        await asyncio.gather(tasks, return_exceptions=True)

    run(scene())


async def test_what_waits_is_counted_by_urgency_and_the_oldest_has_an_age() -> None:
    async def reconcile(key: str) -> None: ...

    work: Workqueue[str] = Workqueue(reconcile, Middling(), lambda key: key)
    assert work.oldest_seconds() == 0
    for key in ("first", "second"):
        work.add(key, Urgency.ROUTINE)
    await asyncio.sleep(0.01)
    work.add("third")
    work.add("first")

    assert work.depths() == {Urgency.CHANGE: 2, Urgency.CHILD: 0, Urgency.ROUTINE: 1}
    assert work.oldest_seconds() >= 0.01


def test_a_failed_look_is_repeated_and_stops_nothing() -> None:
    reconciled: list[str] = []

    async def reconcile(key: str) -> timedelta | None:
        reconciled.append(key)
        if key == "bad" and reconciled.count("bad") == 1:
            raise RuntimeError("once")
        return None

    def begin(work: Workqueue[str]) -> None:
        work.add("bad")
        work.add("good")

    run_work(reconcile, begin, lambda: reconciled.count("bad") == 2, tasks=1)

    assert reconciled.count("good") == 1


def test_a_key_that_fails_rests_for_a_second_then_twice_as_long_up_to_five_minutes() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        reconciled: list[float] = []

        async def reconcile(key: str) -> None:
            reconciled.append(loop.time())
            raise RuntimeError

        work: Workqueue[str] = Workqueue(reconcile, Middling(), lambda key: key)
        work.add("bad")
        tasks = asyncio.create_task(work.run(1))
        await move(1200)

        rests = [after - before for before, after in pairwise(reconciled)]
        steps = (1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300)
        assert len(rests) == len(steps)
        assert all(step <= rest <= step + 1 for step, rest in zip(steps, rests, strict=True))
        tasks.cancel()
        await asyncio.gather(tasks, return_exceptions=True)

    run(scene())


def test_the_next_look_comes_when_the_last_one_said() -> None:
    reconciled: list[float] = []

    async def reconcile(key: str) -> timedelta | None:
        reconciled.append(asyncio.get_running_loop().time())
        return timedelta(seconds=0.3)

    run_work(reconcile, lambda work: work.add("a"), lambda: len(reconciled) == 3)

    assert reconciled[1] - reconciled[0] >= 0.3
    assert reconciled[2] - reconciled[1] >= 0.3


def test_servers_that_hang_hold_a_quarter_of_the_tasks() -> None:
    async def scene() -> None:
        running: set[str] = set()
        done: list[str] = []

        async def reconcile(key: str) -> None:
            running.add(key)
            if key.startswith("frozen"):
                await asyncio.Event().wait()
            done.append(key)

        work: Workqueue[str] = Workqueue(reconcile, Middling(), lambda key: key.split(".")[0])
        for number in range(100):
            work.add(f"frozen.{number}")
        for number in range(100):
            work.add(f"healthy.{number}", Urgency.ROUTINE)
        tasks = asyncio.create_task(work.run(8))
        await move(5)

        assert running - set(done) == {"frozen.0", "frozen.1"}
        assert len(done) == 100
        tasks.cancel()
        await asyncio.gather(tasks, return_exceptions=True)

    run(scene())


def test_of_equal_urgency_servers_go_in_turn() -> None:
    reconciled: list[str] = []

    async def reconcile(key: str) -> None:
        reconciled.append(key)

    def begin(work: Workqueue[str]) -> None:
        for key in ("a.1", "a.2", "a.3", "b.1", "b.2"):
            work.add(key, Urgency.ROUTINE)

    run_work(reconcile, begin, lambda: len(reconciled) == 5, tasks=1)

    assert reconciled == ["a.1", "b.1", "a.2", "b.2", "a.3"]


def test_a_key_rests_between_two_reconciles_whatever_happens_to_it() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        reconciled: list[tuple[str, float]] = []

        async def reconcile(key: str) -> None:
            reconciled.append((key, loop.time()))
            work.add("rolling", Urgency.CHILD)

        work: Workqueue[str] = Workqueue(reconcile, Middling(), lambda key: key)
        work.add("rolling", Urgency.CHILD)
        tasks = asyncio.create_task(work.run(2))
        await move(2)
        work.add("new")
        await move(8)

        begun = [at for key, at in reconciled if key == "rolling"]
        assert len(begun) in (10, 11)
        assert min(b - a for a, b in pairwise(begun)) >= MIN_INTERVAL_SECONDS
        assert dict(reconciled)["new"] <= 3
        tasks.cancel()
        await asyncio.gather(tasks, return_exceptions=True)

    run(scene())


def test_each_key_that_may_begin_has_a_task_while_one_is_idle() -> None:
    """Also one that waited until another of the same servers ended."""

    async def scene() -> None:
        running: list[str] = []
        ends = {key: asyncio.Event() for key in ("a.1", "a.2", "a.3", "b.1", "c.1", "d.1")}

        async def reconcile(key: str) -> None:
            running.append(key)
            await ends[key].wait()
            running.remove(key)

        work: Workqueue[str] = Workqueue(reconcile, Middling(), lambda key: key.split(".")[0])
        tasks = asyncio.create_task(work.run(8))
        await move(1)
        for key in ends:
            work.add(key)
        await move(1)
        assert running == ["a.1", "b.1", "c.1", "d.1", "a.2"]

        ends["b.1"].set()
        await move(1)
        assert "a.3" not in running
        ends["a.1"].set()
        await move(1)
        assert running == ["c.1", "d.1", "a.2", "a.3"]
        tasks.cancel()
        await asyncio.gather(tasks, return_exceptions=True)
        work.add("b.1")  # as an event that comes while the tasks end

    run(scene())
