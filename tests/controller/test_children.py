"""Children follow the MailQueue, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from postroad.controller.kubernetes.api import (
    CONFIG_MAP,
    CONFIGURATION_HASH,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    MAIL_QUEUE,
    SERVICE,
)
from postroad.controller.status import status_writer
from postroad.ports.kubernetes import Kind, Object
from support.resources import intake, mail_queue, secret, workers
from support.running_operator import QUICK, Running

pytestmark = pytest.mark.needs("kubernetes")


@pytest.fixture
async def ready(operator: Running) -> Running:
    """The operator with a queue that is ready, with workers and intake at rest."""
    await operator.apply_cluster()
    await operator.apply(
        mail_queue(operator.namespace, workers=workers(), intake=intake(port=2500))
    )
    await operator.until_ready()
    return operator


async def child(operator: Running, kind: Kind, name: str) -> Object:
    """Return a child, as soon as it is there."""
    for _ in range(200):
        if found := await operator.api.get(kind, operator.namespace, name):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"no {kind.name} {name}")


async def until_child(
    operator: Running, kind: Kind, name: str, expected: Mapping[str, Any], *path: str
) -> None:
    """Wait until a part of a child is as expected."""
    found: Any = None
    for _ in range(200):
        found = await operator.api.get(kind, operator.namespace, name) or {}
        for each in path:
            found = found.get(each, {})
        if found == expected:
            return
        await asyncio.sleep(0.1)
    assert found == expected


async def test_a_deleted_child_comes_back(ready: Running) -> None:
    for kind, name in (
        (CONFIG_MAP, "outgoing-queue"),
        (CONFIG_MAP, "outgoing-delivery"),
        (DEPLOYMENT, "outgoing-worker"),
        (DEPLOYMENT, "outgoing-intake"),
        (SERVICE, "outgoing-intake"),
    ):
        before = await child(ready, kind, name)

        await ready.api.delete(kind, before)
        for _ in range(100):
            found = await child(ready, kind, name)
            if found["metadata"]["uid"] != before["metadata"]["uid"]:
                break
            await asyncio.sleep(0.1)

        assert found["metadata"]["uid"] != before["metadata"]["uid"], name


async def test_a_child_that_is_deleted_twice_is_one_event(
    ready: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_writer, "TOGETHER", QUICK.full)
    for times in (1, 2):
        found = await child(ready, CONFIG_MAP, "outgoing-queue")
        await ready.api.delete(CONFIG_MAP, found)
        events: list[Any] = []
        for _ in range(100):
            events = await ready.events("Repaired")
            if [(each.get("series") or {"count": 1})["count"] for each in events] == [times]:
                break
            await asyncio.sleep(0.1)
        await ready.settle()

    (event,) = events
    assert event["series"]["count"] == 2
    assert event["note"].startswith("ConfigMap outgoing-queue was deleted")


async def test_a_changed_child_is_changed_back(ready: Running) -> None:
    before = await child(ready, CONFIG_MAP, "outgoing-queue")
    data = before["data"]

    change: dict[str, Any] = {"data": {"POSTROAD_QUEUE": "elsewhere"}}
    await ready.api.patch(CONFIG_MAP, ready.namespace, "outgoing-queue", change)
    await until_child(ready, CONFIG_MAP, "outgoing-queue", data, "data")

    await ready.api.patch(DEPLOYMENT, ready.namespace, "outgoing-worker", {"spec": {"replicas": 3}})
    for _ in range(100):
        found = await child(ready, DEPLOYMENT, "outgoing-worker")
        if found["spec"]["replicas"] == 0:
            break
        await asyncio.sleep(0.1)
    assert found["spec"]["replicas"] == 0


async def test_what_others_add_to_a_child_stays(ready: Running) -> None:
    change = {"metadata": {"annotations": {"example.org/theirs": "kept"}}}
    await ready.api.patch(SERVICE, ready.namespace, "outgoing-intake", change)
    await ready.settle()

    found = await child(ready, SERVICE, "outgoing-intake")
    assert found["metadata"]["annotations"]["example.org/theirs"] == "kept"


async def test_children_that_are_no_longer_declared_go(ready: Running) -> None:
    await ready.change({"intake": None})
    await ready.until_gone(SERVICE, "outgoing-intake")
    await ready.until_gone(DEPLOYMENT, "outgoing-intake")
    await ready.until_ready()

    assert "IntakeReady" not in await ready.conditions()
    await ready.until_gone(CONFIG_MAP, "outgoing-intake")


async def test_a_replicas_budget_comes_and_goes_with_the_second_replica(ready: Running) -> None:
    await ready.change({"workers": {"replicas": 2}})
    budget = await child(ready, DISRUPTION_BUDGET, "outgoing-worker")
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    conditions = await ready.until(lambda found: found["WorkersReady"]["status"] == "False")
    assert conditions["WorkersReady"]["message"].startswith("0 of 2 workers ready")
    assert conditions["Reconciling"]["status"] == "True"

    await ready.change({"workers": {"replicas": 0}})
    await ready.until_gone(DISRUPTION_BUDGET, "outgoing-worker")
    await ready.until_ready()


async def test_a_changed_secret_reaches_the_operator_and_replaces_no_pods(ready: Running) -> None:
    def stamp(deployment: Object) -> str:
        annotations = deployment["spec"]["template"]["metadata"]["annotations"]
        found: str = annotations[CONFIGURATION_HASH]
        return found

    before = stamp(await child(ready, DEPLOYMENT, "outgoing-worker"))
    login = {"username": "postroad", "password": "renewed"}
    await ready.apply(secret(ready.namespace, "rabbitmq", login))

    for _ in range(200):
        password = ready.settings[-1].rabbitmq.password
        if password is not None and password.get_secret_value() == "renewed":
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("the operator does not connect with the new password")
    await ready.settle()
    assert stamp(await child(ready, DEPLOYMENT, "outgoing-worker")) == before


async def test_labels_of_the_mail_queue_are_not_copied(operator: Running) -> None:
    """Argo CD and Flux would take copies for objects of their own, and prune them."""
    queue = mail_queue(operator.namespace, workers=workers())
    queue["metadata"]["labels"] = {
        "app.kubernetes.io/instance": "gitops-application",
        "kustomize.toolkit.fluxcd.io/name": "mail",
    }
    queue["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "mail:x"}
    await operator.apply_cluster()
    await operator.apply(queue)
    await operator.until_ready()

    found = await child(operator, DEPLOYMENT, "outgoing-worker")

    assert found["metadata"]["labels"] == {
        "app.kubernetes.io/name": "postroad",
        "app.kubernetes.io/instance": "outgoing",
        "app.kubernetes.io/component": "worker",
        "app.kubernetes.io/managed-by": "postroad",
    }
    assert not any("argoproj" in each for each in found["metadata"]["annotations"])
    owned = (await operator.api.get(MAIL_QUEUE, operator.namespace, "outgoing")) or {}
    assert owned["metadata"]["labels"]["app.kubernetes.io/instance"] == "gitops-application"


async def test_a_pause_alone_leaves_a_queue_ready(ready: Running) -> None:
    await ready.change({"paused": True})
    conditions = await ready.until(lambda found: "Paused" in found)
    await ready.settle()

    assert conditions["Ready"]["status"] == "True"
    assert (await ready.conditions())["Ready"] == conditions["Ready"]


async def test_a_paused_queue_is_left_as_it_is(ready: Running) -> None:
    await ready.change({"paused": True, "workers": {"concurrency": 5}})
    conditions = await ready.until(lambda found: "Paused" in found)
    before = await child(ready, CONFIG_MAP, "outgoing-queue")
    await ready.api.delete(SERVICE, await child(ready, SERVICE, "outgoing-intake"))
    await ready.settle()

    ready_condition = conditions["Ready"]
    assert (ready_condition["status"], ready_condition["reason"]) == ("Unknown", "PausedByUser")
    assert before["data"]["POSTROAD_WORKER_CONCURRENCY"] == "200"
    assert await ready.api.get(SERVICE, ready.namespace, "outgoing-intake") is None

    await ready.change({"paused": False})
    await ready.until_ready()
    assert (await ready.configuration_of_pods())["POSTROAD_WORKER_CONCURRENCY"] == "5"
    assert "Paused" not in await ready.conditions()
    await child(ready, SERVICE, "outgoing-intake")
