"""The operator's figures from a scrape, and its MailQueues as a watch shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from prometheus_client import generate_latest

import servers
from bench.operator_deletion import Traffic
from bench.operator_process import counted_in
from bench.operator_watch import watching
from postroad import open_queue
from postroad.adapters.clocks import MachineClock
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import MAIL_QUEUE, QUEUE_CLUSTER
from support.access_to_kubernetes import access_to
from support.api_over_http import KINDS, api_over_http
from support.memory.kubernetes.world import KubernetesWorld
from support.resources import mail_queue
from support.running_operator import Running


@pytest.fixture
async def operator() -> AsyncIterator[Running]:
    async with api_over_http(KubernetesWorld(MachineClock(), KINDS)) as (url, _):
        api = ApiServer(access_to(url, "t0ken"), "user")
        running = Running(api, "mail", skips=timedelta(seconds=0.5))
        await running.start()
        yield running
        await running.stop()
        await api.close()


async def test_a_watch_shows_when_each_queue_is_ready_and_which_is_lost(operator: Running) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue("mail", "early"))
    await operator.until_ready("early")
    began = time.monotonic()
    async with watching(operator.api, "mail") as watch:
        await operator.apply(mail_queue("mail", "late"))
        assert await watch.until_ready(["early", "late"], 30) >= began
        assert watch.losses == []

        cluster = await operator.api.get(QUEUE_CLUSTER, "mail", "main")
        assert cluster
        await operator.api.patch(
            QUEUE_CLUSTER, "mail", "main", {"spec": {"allowedNamespaces": {"from": "None"}}}
        )
        await operator.until(lambda found: found["Ready"]["status"] == "False", "late")
        late = await operator.queue("late")
        await operator.api.delete(MAIL_QUEUE, late)
        assert await watch.until_gone("late", 30) > began
        assert any(each.startswith("late: ") for each in watch.losses)

        with pytest.raises(AssertionError, match="1 of 1 are not ready"):
            await watch.until_ready(["none"], 0.1)


async def test_the_requests_of_an_operator_are_counted_by_its_own_metrics(
    operator: Running,
) -> None:
    before = counted_in(generate_latest().decode())
    await operator.apply_cluster()
    await operator.apply(mail_queue("mail"))
    await operator.until_ready()
    async with asyncio.timeout(30):
        while not (found := counted_in(generate_latest().decode()).since(before)).reconciles[
            "MailQueue"
        ]:
            await operator.pause()  # the reconcile that wrote the status is counted when it ends

    assert found.leads
    assert found.reconciles["MailQueue"] > 0
    assert found.calls["PUT", "mailqueues/status"] == found.writes["PUT", "mailqueues/status"] > 0
    assert found.requests > found.writes.total()
    assert {resource for _, resource in found.writes} & {"leases", ""} == set()


async def test_each_mail_of_the_traffic_is_timed_until_it_is_accepted_and_until_it_comes_out() -> (
    None
):
    async with open_queue(f"memory://{servers.fresh()}", create=True) as queue:
        traffic, began = Traffic(queue), time.monotonic()
        running = asyncio.create_task(traffic.run())
        async with asyncio.timeout(30):
            while len(traffic.delivered) < 3:
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    ended = time.monotonic()
    delivered = traffic.within(traffic.delivered, began, ended)
    accepted = traffic.within(traffic.accepted, began, ended)
    assert len(delivered) >= 3
    assert len(accepted) >= 2, "the last may come out before its enqueue returns"
    assert traffic.within(traffic.delivered, ended, ended + 1) == []
