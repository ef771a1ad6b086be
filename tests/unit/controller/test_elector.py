"""The election over a Lease in memory, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from postroad.controller.kubernetes.api import LEASE
from postroad.controller.run.elector import LOST, Elector, Fence, LeasePlace, Watchdog
from postroad.errors import (
    KubernetesConflict,
    LeadershipLost,
)
from postroad.ports.kubernetes import Object
from support.memory.clock import ManualClock, SeededRandomness
from support.memory.fault_injection import ERRORS, WORDS, Fault, FaultInjector, Step, away
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld

PLACE = LeasePlace("system", "postroad-operator")


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


class Stage:
    """An API server, and operators that take part in one election."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.world = KubernetesWorld(self.clock)
        self.user = MemoryKubernetes(self.world, "user")
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.faults: dict[str, FaultInjector] = {}
        self.clients: dict[str, MemoryKubernetes] = {}

    def start(self, name: str) -> Elector:
        self.faults[name] = FaultInjector()
        self.clients[name] = MemoryKubernetes(self.world, "postroad", self.faults[name])
        elector = Elector(
            self.clients[name],
            PLACE,
            name,
            clock=self.clock,
            randomness=SeededRandomness(len(self.tasks)),
        )

        async def run() -> None:
            await elector.lead()
            await elector.keep()

        self.tasks[name] = asyncio.create_task(run())
        return elector

    async def kill(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)

    async def advance(self, number: float) -> None:
        await self.clock.advance(seconds(number))

    async def lease(self) -> Object:
        found = await self.user.get(LEASE, PLACE.namespace, PLACE.name)
        assert found
        return found

    async def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = (await self.lease())["spec"]
        return spec


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    found = Stage()
    yield found
    for name in found.tasks:
        await found.kill(name)


def is_open(fence: Fence) -> bool:
    with contextlib.suppress(LeadershipLost):
        fence.require()
        return True
    return False


async def test_the_first_one_makes_the_lease_and_leads(stage: Stage) -> None:
    one = stage.start("one")
    await stage.advance(0)

    one.fence.require()
    assert one.is_leader
    assert await stage.spec() == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T10:00:00.000000Z",
        "renewTime": "2026-01-01T10:00:00.000000Z",
        "leaseTransitions": 0,
    }

    await stage.advance(3)
    spec = await stage.spec()
    assert spec["acquireTime"] == "2026-01-01T10:00:00.000000Z"
    assert spec["renewTime"] > "2026-01-01T10:00:02"


async def test_the_second_one_stands_by_while_the_first_renews(stage: Stage) -> None:
    stage.start("one")
    await stage.advance(0)
    two = stage.start("two")

    await stage.advance(300)

    assert not two.is_leader
    assert two.is_in_touch()
    assert not is_open(two.fence)
    assert (await stage.spec())["holderIdentity"] == "one"

    await stage.kill("one")
    await stage.advance(20)
    assert is_open(two.fence), "a refusal before it was the leader means nothing later"


async def test_an_operator_that_stands_by_logs_its_leader_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.start("one")
    await stage.advance(0)
    caplog.clear()

    with caplog.at_level(logging.INFO):
        stage.start("two")
        await stage.advance(300)

    leaders = [vars(each)["leader"] for each in caplog.records if each.message == "standby"]
    assert leaders == [None, "one"]


async def test_a_dead_leader_is_followed_within_twenty_seconds(stage: Stage) -> None:
    stage.start("one")
    await stage.advance(0)
    two = stage.start("two")
    await stage.advance(7)
    await stage.kill("one")

    await stage.advance(12)
    assert not two.is_leader, "the Lease still lasts"
    await stage.advance(8)

    assert is_open(two.fence)
    assert (await stage.spec())["leaseTransitions"] == 1


async def test_a_lease_that_is_given_back_is_taken_at_once(stage: Stage) -> None:
    one = stage.start("one")
    await stage.advance(0)
    two = stage.start("two")
    await stage.advance(1)
    await stage.kill("one")
    await one.give_back()
    assert (await stage.spec())["holderIdentity"] == ""
    assert not is_open(one.fence)

    await stage.advance(2.5)

    assert is_open(two.fence)


async def test_a_leader_without_an_api_server_stops_at_its_deadline(stage: Stage) -> None:
    one = stage.start("one")
    await stage.advance(1)
    stage.faults["one"].plan = away("kubernetes")

    await stage.advance(8.9)
    one.fence.require()
    await stage.advance(0.1)

    assert not is_open(one.fence)
    assert isinstance(stage.tasks["one"].exception(), LeadershipLost)


async def test_a_leader_outlives_requests_that_fail(stage: Stage) -> None:
    one = stage.start("one")
    await stage.advance(1)
    stage.faults["one"].plan = lambda step: Fault.AWAY if step.number % 3 else Fault.ANSWER_LOST

    await stage.advance(6)
    stage.faults["one"].plan = lambda step: None
    await stage.advance(60)

    assert is_open(one.fence)
    assert (await stage.spec())["leaseTransitions"] == 0


@pytest.mark.parametrize("verb", ["create", "patch"])
async def test_a_lost_answer_about_the_first_write_is_found_by_reading(
    stage: Stage, verb: str
) -> None:
    if verb == "patch":
        before = stage.start("before")
        await stage.advance(0)
        await stage.kill("before")
        await before.give_back()
    one = stage.start("one")

    def lose(step: Step) -> Fault | None:
        stage.faults["one"].plan = lose if step.operation.startswith("get") else lambda _: None
        return Fault.ANSWER_LOST if step.operation.startswith(verb) else None

    stage.faults["one"].plan = lose
    await stage.advance(0)
    assert not is_open(one.fence)
    assert (await stage.spec())["holderIdentity"] == "one"

    await stage.advance(2.5)

    assert one.is_leader
    assert is_open(one.fence)


async def test_of_two_that_take_it_at_once_one_leads(stage: Stage) -> None:
    both = [stage.start("one"), stage.start("two")]
    await stage.advance(60)

    assert [each.is_leader for each in both].count(True) == 1
    assert [is_open(each.fence) for each in both].count(True) == 1


async def test_a_process_that_was_suspended_has_no_effect_when_it_goes_on(stage: Stage) -> None:
    one = stage.start("one")
    await stage.advance(1)
    one.fence.require()

    stage.clock.jump(seconds(60))  # before any task of the process runs

    with pytest.raises(LeadershipLost):
        one.fence.require()
    await stage.advance(0)
    assert isinstance(stage.tasks["one"].exception(), LeadershipLost)


async def test_a_renewal_after_a_refusal_opens_no_fence(stage: Stage) -> None:
    fence = Fence(stage.clock)
    fence.open(seconds(10), seconds(15))
    stage.clock.jump(seconds(11))
    assert not is_open(fence)

    fence.open(seconds(20), seconds(25))

    assert not is_open(fence)


@pytest.mark.parametrize("change", ["deleted", "taken"])
async def test_a_leader_that_loses_the_lease_to_a_user_stops(stage: Stage, change: str) -> None:
    one = stage.start("one")
    await stage.advance(1)
    if change == "deleted":
        await stage.user.delete(LEASE, await stage.lease())
    else:
        spec = {"spec": {"holderIdentity": "another"}}
        await stage.user.patch(LEASE, PLACE.namespace, PLACE.name, spec)

    await stage.advance(2.5)

    assert not is_open(one.fence)
    assert isinstance(stage.tasks["one"].exception(), LeadershipLost)


async def test_a_label_on_the_lease_costs_nothing(stage: Stage) -> None:
    one = stage.start("one")
    await stage.advance(1)
    labels = {"metadata": {"labels": {"team": "mail"}}}
    await stage.user.patch(LEASE, PLACE.namespace, PLACE.name, labels)

    await stage.advance(60)

    assert is_open(one.fence)
    assert (await stage.lease())["metadata"]["labels"]["team"] == "mail"


async def test_a_candidate_without_rights_waits_and_is_not_in_touch(stage: Stage) -> None:
    one = stage.start("one")
    stage.clients["one"].refused = {("get", "leases")}
    await stage.advance(30)
    assert not one.is_in_touch()
    assert not stage.tasks["one"].done()

    stage.clients["one"].refused = set()
    await stage.advance(3)

    assert one.is_leader


async def test_a_lease_that_cannot_be_written_is_reported_once_until_it_can(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object) -> Object:
        raise KubernetesConflict("409 for ever")

    def reported() -> list[str]:
        return [each.message for each in caplog.records if "cannot be used" in each.message]

    with monkeypatch.context() as patch:
        patch.setattr(MemoryKubernetes, "create", refuse)
        one = stage.start("one")
        await stage.advance(300)
        assert len(reported()) == 1
        assert not one.is_in_touch()
    await stage.advance(5)
    assert one.is_leader

    monkeypatch.setattr(MemoryKubernetes, "patch", refuse)
    await stage.advance(5)
    assert len(reported()) == 2


# The watchdog


def ended_by(fence: Fence, clock: ManualClock, turns: int) -> list[int]:
    """Return the exit codes by which a watchdog ends the process while so many seconds pass."""
    ended: list[int] = []
    left = iter(range(turns))

    def wait(_: float) -> bool:
        clock.jump(seconds(1))
        return next(left, None) is None

    Watchdog(fence, ended.append, wait).run()
    return ended


def test_the_watchdog_ends_a_process_that_outlasts_its_lease() -> None:
    clock = ManualClock()
    fence = Fence(clock)
    fence.open(seconds(10), seconds(15))

    assert ended_by(fence, clock, 13) == []
    assert ended_by(fence, clock, 1) == [LOST]


def test_the_watchdog_leaves_a_process_alone_that_has_nothing_under_way() -> None:
    clock = ManualClock()
    fence = Fence(clock)
    assert ended_by(fence, clock, 30) == [], "it stands by"

    fence.open(seconds(60), seconds(65))
    fence.settled()
    assert ended_by(fence, clock, 60) == []


@pytest.mark.parametrize("error", ERRORS.values(), ids=list(ERRORS))
@pytest.mark.parametrize("verb", ["get", "create", "patch"])
@pytest.mark.parametrize("is_led", [False, True], ids=["from the start", "under a leader"])
@pytest.mark.parametrize("concerned", [["one"], ["one", "two"]], ids=["one process", "all"])
async def test_while_requests_about_the_lease_fail_at_most_one_process_acts(
    stage: Stage,
    caplog: pytest.LogCaptureFixture,
    error: Callable[[], Exception],
    verb: str,
    concerned: list[str],
    *,
    is_led: bool,
) -> None:
    """As with other resources' requests (`test_api_server_errors.py`)."""
    is_planted = False

    async def before(step: Step) -> None:
        if is_planted and step.operation.startswith(f"{verb} "):
            raise error()

    async def pass_time() -> None:
        for _ in range(120):
            await stage.advance(0.5)
            assert [is_open(each.fence) for each in electors.values()].count(True) <= 1

    def restart_ended() -> None:
        for name in [each for each in electors if stage.tasks[each].done()]:
            assert isinstance(stage.tasks[name].exception(), LeadershipLost)
            electors[f"{name}'"] = stage.start(f"{name}'")

    is_planted = not is_led
    electors = {}
    for name in ("one", "two"):
        electors[name] = stage.start(name)
        stage.faults[name].before = before if name in concerned else None
        await stage.advance(1 if is_led else 0)
    is_planted = True
    await pass_time()
    is_failing = any(WORDS in str(vars(each)) for each in caplog.records)
    assert is_failing or any(is_open(each.fence) for each in electors.values())
    is_planted = False
    restart_ended()
    await pass_time()

    assert [is_open(each.fence) for each in electors.values()].count(True) == 1
