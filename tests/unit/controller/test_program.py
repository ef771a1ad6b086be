"""The operator's program, with Kopf, over an API server in memory that is reached by HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from postroad.adapters.clocks import MachineClock
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import DEPLOYMENT, LEASE, MAIL_QUEUE, QUEUE_CLUSTER
from support.access_to_kubernetes import access_to
from support.api_over_http import KINDS, HttpKubernetes, api_over_http
from support.memory.kubernetes.world import KubernetesWorld, ObjectPlace
from support.resources import mail_queue, view, workers
from support.running_operator import Running


@pytest.fixture
async def served() -> AsyncIterator[tuple[str, HttpKubernetes]]:
    async with api_over_http(KubernetesWorld(MachineClock(), KINDS)) as found:
        yield found


@pytest.fixture
async def operator(served: tuple[str, HttpKubernetes]) -> AsyncIterator[Running]:
    api = ApiServer(access_to(served[0], "t0ken"), "user")
    running = Running(api, "mail", skips=timedelta(seconds=0.5))
    await running.start()
    yield running
    await running.stop()
    await api.close()


async def test_the_life_of_a_queue(operator: Running, served: tuple[str, HttpKubernetes]) -> None:
    await operator.apply_cluster()
    await operator.apply(
        mail_queue("mail", view=view("1h", 3), workers=workers(), deletionPolicy="Delete")
    )
    await operator.until_ready()
    child = await operator.api.get(DEPLOYMENT, "mail", "outgoing-worker")
    assert child

    await operator.change({"view": view("30m", 3)})
    await operator.until(lambda found: "version 2" in found["ConfigurationAccepted"]["message"])

    await operator.api.delete(DEPLOYMENT, child)
    for _ in range(100):
        again = await operator.api.get(DEPLOYMENT, "mail", "outgoing-worker")
        if again is not None:
            break
        await operator.pause()
    assert again

    await operator.api.delete(MAIL_QUEUE, await operator.queue())
    await operator.until_gone(MAIL_QUEUE, "outgoing")
    cluster = await operator.api.get(QUEUE_CLUSTER, "mail", "main")
    assert cluster
    await operator.api.delete(QUEUE_CLUSTER, cluster)
    await operator.until_gone(QUEUE_CLUSTER, "main")

    assert await operator.events("Deleted")
    assert served[1].authorizations == {"Bearer t0ken"}, "Kopf's watches too"


async def test_no_reconcile_begins_before_all_kinds_are_indexed(
    served: tuple[str, HttpKubernetes],
) -> None:
    api = ApiServer(access_to(served[0], "t0ken"), "user")
    operator = Running(api, "mail")
    await operator.apply_cluster()
    await operator.apply(mail_queue("mail"))
    queues, deployments = (
        f"{each.prefix}/namespaces/mail/{each.plural}" for each in (MAIL_QUEUE, DEPLOYMENT)
    )
    served[1].silent.add(deployments)
    operator.begin()
    while served[1].requests.count(f"GET {queues}") < 2:  # it was listed, and is watched
        await asyncio.sleep(0.01)
    await operator.apply(mail_queue("mail", "second"))
    await operator.pause()
    writes = [each for each in served[1].requests if each.startswith(("PATCH", "PUT"))]
    assert not [each for each in writes if LEASE.plural not in each]

    served[1].silent.clear()
    await operator.until_ready()
    await operator.until_ready("second")
    await operator.stop()
    await api.close()


async def test_watches_that_are_forgotten_begin_anew(
    operator: Running, served: tuple[str, HttpKubernetes]
) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue("mail"))
    await operator.until_ready()

    served[1].world.forget_changes()
    await served[1].break_watches()
    await operator.apply(mail_queue("mail", "second"))

    await operator.until_ready("second")
    assert operator.obstacle() == ""


async def test_a_deletion_that_no_watch_brings_is_noticed(
    operator: Running, served: tuple[str, HttpKubernetes]
) -> None:
    """Kopf lists anew after the 410, and keeps the object in its index."""
    await operator.apply_cluster()
    await operator.apply(mail_queue("mail"))
    await operator.until_ready()

    world = served[1].world
    world.delete(ObjectPlace(MAIL_QUEUE.plural, "mail", "outgoing"))
    world.forget_changes()

    for _ in range(100):
        if await operator.events("Retained"):
            break
        await operator.pause()
    assert await operator.events("Retained")
