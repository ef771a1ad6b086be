"""The view configuration over time: accepted, refused past admission, rebuilt, bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.adapters.memory.servers import MemoryServers
from postroad.configuration import settle
from postroad.controller.kubernetes.api import DEPLOYMENT, MAIL_QUEUE
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.names import QueueName
from support.crds import CRD, ROOT, install_crds
from support.kubectl import manifests
from support.resources import mail_queue, view, workers
from support.running_operator import Running

pytestmark = pytest.mark.needs("kubernetes")


@pytest.fixture
async def unguarded(api: ApiServer) -> AsyncIterator[None]:
    """The CRDs without rules, as after a downgrade, or for a client that writes to etcd."""
    for crd in manifests(ROOT / "crds"):
        await api.apply(CRD, without_rules(crd))
    yield
    await install_crds(api)


def without_rules(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: without_rules(v) for k, v in node.items() if k != "x-kubernetes-validations"}
    return [without_rules(each) for each in node] if isinstance(node, list) else node


async def test_an_allowed_change_becomes_the_next_version(operator: Running) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, view=view("1h", 3)))
    await operator.until_ready()

    await operator.change({"view": view("30m", 4, 25)})
    await operator.until_ready()

    status = await operator.status()
    assert status["configuration"] | view("30m", 4, 25) | {"version": 2} == status["configuration"]
    assert [each["type"] for each in status["history"]] == [
        "ConfigurationCreated",
        "ConfigurationChanged",
    ]
    assert status["history"][1]["generation"] == 2
    while len(await operator.until_told("ConfigurationAccepted")) < 2:
        await operator.pause()


async def test_a_refused_change_leaves_the_accepted_one_in_force_and_the_rest_goes_on(
    operator: Running, unguarded: None
) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, view=view("1h", 3), workers=workers()))
    await operator.until_ready()

    changed = workers() | {"concurrency": 7}
    await operator.change({"view": view("25m", 2), "workers": changed})
    conditions = await operator.until(lambda found: "Stalled" in found)
    await operator.settle()

    refused = conditions["ConfigurationAccepted"]
    assert (refused["status"], refused["reason"]) == ("False", "SliceWindowDoesNotDivide")
    assert "20m and 30m" in refused["message"]
    assert "choose 3 or more" in refused["message"]
    assert conditions["Ready"]["status"] == "False"
    assert "Reconciling" not in conditions
    status = await operator.status()
    assert status["observedGeneration"] == 2
    assert (status["configuration"]["version"], status["configuration"]["sliceWindow"]) == (1, "1h")
    assert [each["type"] for each in status["history"]] == [
        "ConfigurationCreated",
        "ConfigurationRefused",
    ]
    assert len(await operator.until_told("SliceWindowDoesNotDivide", "Warning")) == 1
    warned = [each["reason"] for each in await operator.events(kind="Warning")]
    assert warned == ["SliceWindowDoesNotDivide"]
    worker = await operator.api.get(DEPLOYMENT, operator.namespace, "outgoing-worker")
    config = await operator.configuration_of_pods()
    assert worker
    assert config["POSTROAD_WORKER_CONCURRENCY"] == "7"

    await operator.change({"view": view("30m", 3)})
    await operator.until_ready()

    mended = await operator.conditions()
    assert "Stalled" not in mended
    assert (await operator.status())["configuration"]["version"] == 2


async def test_a_lost_status_is_rebuilt_from_the_history(operator: Running) -> None:
    """Deleting and making anew (GitOps' replace, a restore) loses a status, not the history."""
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, view=view("1h", 3)))
    await operator.until_ready()
    await operator.change({"view": view("30m", 4)})
    await operator.until_ready()
    before = await operator.status()

    await operator.api.delete(MAIL_QUEUE, await operator.queue())
    await operator.until_gone(MAIL_QUEUE, "outgoing")
    await operator.apply(mail_queue(operator.namespace, view=view("45m", 1)))
    conditions = await operator.until(lambda found: "Stalled" in found)

    after = await operator.status()
    assert conditions["ConfigurationAccepted"]["reason"] == "SliceWindowGrows"
    assert after["configuration"] == before["configuration"]
    assert after["history"][:2] == before["history"]


async def test_a_wiped_status_comes_back_by_itself(operator: Running) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, view=view("1h", 3)))
    await operator.until_ready()
    queue = await operator.queue()

    assert await operator.api.replace_status(
        MAIL_QUEUE, queue | {"status": {"observedGeneration": -1}}
    )
    await operator.until_ready()

    assert (await operator.status())["history"] == queue["status"]["history"]


async def test_a_history_that_is_gone_is_not_begun_anew(operator: Running) -> None:
    """The status remembers a configuration that the view does not: data were lost."""
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, view=view("1h", 3)))
    await operator.until_ready()
    name = QueueName(operator.namespace, "outgoing")

    servers = MemoryServers(operator.memory)
    await servers.views().view(str(name)).erase()
    await servers.history(name).erase()
    conditions = await operator.until(lambda found: "Stalled" in found)

    assert conditions["ConfigurationAccepted"]["status"] == "False"
    assert "adopt" in conditions["ConfigurationAccepted"]["message"]
    assert (await operator.status())["configuration"]["sliceWindow"] == "1h"
    assert (await servers.history(name).load()).events == ()


async def test_a_long_history_is_folded_in_the_status(operator: Running) -> None:
    history = MemoryServers(operator.memory).history(QueueName(operator.namespace, "outgoing"))
    for pace in range(1, 121):
        wanted = ViewConfiguration(timedelta(hours=1), 1, pace)
        await settle(history, wanted, at=datetime(2026, 1, 1, tzinfo=UTC), by="test")

    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, view=view("1h", 1, 120)))
    await operator.until_ready()

    status = await operator.status()
    assert status["configuration"]["version"] == 120
    assert len(status["history"]) == 50
    assert status["history"][0]["type"] == "HistoryFolded"
    assert len(json.dumps(status["history"])) < 64 * 1024
