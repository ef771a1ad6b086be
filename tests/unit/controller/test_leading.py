"""The operator's program as leader and in stand-by, over an API server in memory by HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from postroad.adapters.clocks import MachineClock
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import DEPLOYMENT, LEASE, MAIL_QUEUE
from postroad.controller.run import program
from postroad.controller.run.causes import lease_name
from postroad.controller.spec.cluster import DEFAULT_CLASS
from postroad.errors import LeadershipLost
from support.access_to_kubernetes import access_to
from support.api_over_http import KINDS, HttpKubernetes, api_over_http
from support.memory.kubernetes.world import KubernetesWorld
from support.resources import mail_queue, view
from support.running_operator import Running
from support.skipped_time import SkippedClock

Served = tuple[str, HttpKubernetes]
LEASE_NAME = lease_name(DEFAULT_CLASS)
A_LOOK = timedelta(seconds=3)
"""Longer than an operator waits between two looks at the Lease."""


class HastyClock(SkippedClock):
    """The machine's clock, on which the first sleeps of seconds take no time: it is as much later
    behind."""

    def __init__(self, sleeps: int) -> None:
        super().__init__()
        self._sleeps = sleeps

    async def sleep(self, duration: timedelta) -> None:
        if self._sleeps == 0 or duration > timedelta(seconds=5):
            return await super().sleep(duration)
        self._sleeps -= 1
        self.skipped += duration
        return await asyncio.sleep(0)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with api_over_http(KubernetesWorld(MachineClock(), KINDS)) as found:
        yield found


@pytest.fixture
async def leader(served: Served) -> AsyncIterator[Running]:
    """An operator that leads, over a queue that is ready."""
    api = ApiServer(access_to(served[0]), "user")
    operator = Running(api, "mail")
    await operator.start()
    await operator.apply_cluster()
    await operator.apply(mail_queue("mail"))
    await operator.until_ready()
    while not await operator.events("ConfigurationAccepted"):  # the last write about the queue
        await operator.pause()
    yield operator
    await api.close()


async def until(holds: Callable[[], object], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # what is waited for is in another thread
            await asyncio.sleep(0.05)


def writes(server: HttpKubernetes) -> list[str]:
    return [
        each
        for each in server.requests
        if not each.startswith("GET") and "reviews" not in each and "leases" not in each
    ]


async def test_the_second_operator_is_ready_and_does_nothing_until_the_first_ends(
    served: Served, leader: Running
) -> None:
    second = Running(leader.api, "mail", memory=leader.memory)
    second.begin()
    await until(lambda: second.obstacle() == "")
    assert not second.elector.is_leader
    assert second.settings == [], "it connects to no server"

    await leader.stop()
    served[1].requests.clear()
    await second.skip(A_LOOK)
    await second.until_leading()
    await second.change({"view": view("30m", 3)})
    await second.until(lambda found: "version 2" in found["ConfigurationAccepted"]["message"])
    await second.stop()

    lease = await leader.api.get(LEASE, "mail", LEASE_NAME)
    assert lease
    assert lease["spec"]["holderIdentity"] == ""
    assert lease["spec"]["leaseTransitions"] == 1


async def test_a_check_of_rights_that_fails_unexpectedly_is_made_again(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check, failed = program.missing_rights, False

    async def fail_once(*of: Any) -> tuple[str, ...]:
        nonlocal failed
        if not failed:
            failed = True
            raise TypeError("an answer of another shape")
        return await check(*of)

    monkeypatch.setattr(program, "missing_rights", fail_once)
    monkeypatch.setattr(program, "MISSING_RIGHTS_INTERVAL", timedelta(milliseconds=10))
    api = ApiServer(access_to(served[0]), "user")
    operator = Running(api, "mail")
    operator.begin()
    await until(lambda: operator.obstacle() == "")
    await operator.stop()
    await api.close()

    assert "the operator's rights were not checked" in caplog.text


async def test_a_missing_right_is_logged_with_the_ways_to_give_it(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def lacking(*_: Any) -> tuple[str, ...]:
        return ("list mailqueues",)

    monkeypatch.setattr(program, "missing_rights", lacking)
    api = ApiServer(access_to(served[0]), "user")
    operator = Running(api, "mail")
    operator.begin()
    await until(lambda: "rights are missing" in caplog.text)
    await operator.stop()
    await api.close()

    assert "upgrade the chart's release" in caplog.text, "install.yaml has another image than it"


async def test_an_operator_that_lost_its_lease_ends_without_a_write(
    served: Served, leader: Running
) -> None:
    await leader.api.patch(LEASE, "mail", LEASE_NAME, {"spec": {"holderIdentity": "another"}})
    await leader.skip(A_LOOK)
    await until(lambda: not leader.elector.is_leader)
    served[1].requests.clear()
    await leader.change({"paused": True})

    with pytest.raises(LeadershipLost):
        await leader.stop()

    assert writes(served[1]) == [f"PATCH {path_of('outgoing')}"], "the user's alone"
    lease = await leader.api.get(LEASE, "mail", LEASE_NAME)
    assert lease
    assert lease["spec"]["holderIdentity"] == "another"


async def test_a_suspended_operator_has_no_effect_afterwards(
    served: Served, leader: Running
) -> None:
    """Its event loop goes on as if nothing had been; only the clock shows it."""
    leader.clock.skipped = timedelta(seconds=60)
    served[1].requests.clear()
    await leader.apply(mail_queue("mail", "second"))
    await until(lambda: leader.held_back)
    await leader.skip(A_LOOK)

    with pytest.raises(LeadershipLost):
        await asyncio.to_thread(leader.join)

    user = [f"POST {path_of()}"]
    assert writes(served[1]) == user
    assert "leases" not in "".join(served[1].requests), "nor does it give anything back"


async def test_an_api_server_that_is_away_ends_no_operator_that_waits(served: Served) -> None:
    served[1].answers = [web.json_response({"message": "starting"}, status=503) for _ in range(4)]
    api = ApiServer(access_to(served[0]), "user")
    operator = Running(api, "mail", clock=HastyClock(sleeps=4))

    await operator.start()

    assert served[1].answers == []
    await until(lambda: operator.obstacle() == "")
    await operator.stop()
    await api.close()


async def test_a_stopped_operator_lets_its_reconciles_end(served: Served, leader: Running) -> None:
    """Kopf would cancel them: `finish` comes first, and the Lease is given back after it."""
    began, goes_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hold(step: object) -> None:
        if "declare" in str(step) and not began.is_set():
            loop.call_soon_threadsafe(began.set)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(goes_on.wait(), loop))

    leader.faults.before = hold
    await leader.apply(mail_queue("mail", "second"))
    await began.wait()
    stopping = asyncio.create_task(leader.stop())
    await leader.skip(A_LOOK)
    await leader.pause()
    assert not stopping.done()
    goes_on.set()
    await stopping

    found = await leader.api.get(MAIL_QUEUE, "mail", "second")
    assert found
    assert "configuration" in found["status"]
    lease = await leader.api.get(LEASE, "mail", LEASE_NAME)
    assert lease
    assert lease["spec"]["holderIdentity"] == ""


async def test_nothing_outlasts_an_operator_that_ends_while_its_watches_begin(
    served: Served,
) -> None:
    """What it leaves open would end with the event loop, in any order."""
    deployments = f"{DEPLOYMENT.prefix}/namespaces/mail/{DEPLOYMENT.plural}"
    served[1].silent = {deployments}
    api = ApiServer(access_to(served[0]), "user")
    operator = Running(api, "mail")
    await operator.start()
    await until(lambda: f"GET {deployments}" in served[1].requests)

    await operator.stop()

    assert operator.outlasting == []
    await api.close()


def path_of(name: str = "") -> str:
    path = f"{MAIL_QUEUE.prefix}/namespaces/mail/{MAIL_QUEUE.plural}"
    return f"{path}/{name}" if name else path
