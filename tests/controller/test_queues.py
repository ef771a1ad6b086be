"""The operator's main path: from declared to ready, and nothing written when nothing changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import (
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    POD,
    QUEUE_CLUSTER,
    SERVICE,
)
from postroad.controller.reads import WATCHED
from support.recording_api import RecordingApi
from support.resources import intake, mail_queue, view, workers
from support.running_operator import IMAGE, Running

pytestmark = pytest.mark.needs("kubernetes")


async def test_a_declared_queue_becomes_ready(operator: Running) -> None:
    await operator.apply_cluster()
    await operator.apply(
        mail_queue(operator.namespace, view=view("1h", 3), workers=workers(), intake=intake())
    )
    await operator.until_ready()

    queue = await operator.queue()
    status = queue["status"]
    assert "finalizers" not in queue["metadata"]
    assert status["observedGeneration"] == queue["metadata"]["generation"]
    assert status["configuration"] | {"effectiveFrom": ""} == {
        "version": 1,
        **view("1h", 3),
        "effectiveFrom": "",
    }
    assert [(each["type"], each["version"]) for each in status["history"]] == [
        ("ConfigurationCreated", 1)
    ]
    assert (status["size"], status["delayed"], status["deadLetters"]) == (0, 0, 0)
    assert status["workers"]["desired"] == 0
    truths = {each["type"]: each["status"] for each in status["conditions"]}
    assert truths == dict.fromkeys(
        ("Ready", "ConfigurationAccepted", "BrokerReady", "ViewReady", "BlobsReady",
         "WorkersReady", "IntakeReady"), "True"
    )  # fmt: skip
    for kind, name in (
        (DEPLOYMENT, "outgoing-worker"),
        (DEPLOYMENT, "outgoing-intake"),
        (SERVICE, "outgoing-intake"),
        (CONFIG_MAP, "outgoing-queue"),
        (CONFIG_MAP, "outgoing-delivery"),
    ):
        child = await operator.api.get(kind, operator.namespace, name)
        assert child, name
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == (
            "MailQueue",
            "outgoing",
            True,
        )
    worker = await operator.api.get(DEPLOYMENT, operator.namespace, "outgoing-worker")
    assert worker
    assert worker["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE


async def test_the_cluster_says_what_it_found(operator: Running) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace))
    await operator.until_ready("main", QUEUE_CLUSTER)
    await operator.until_ready()

    async def status() -> dict[str, Any]:
        cluster = await operator.api.get(QUEUE_CLUSTER, operator.namespace, "main")
        assert cluster
        found: dict[str, Any] = cluster["status"]
        return found

    async with asyncio.timeout(30):
        while (found := await status())["queues"] != 1:  # the next look counts the queue
            await asyncio.sleep(0.1)
    assert found["versions"] == {"rabbitmq": "memory", "cassandra": "memory", "s3": "memory"}
    assert found["tables"]["rowLifetime"] == "336h"


async def test_nothing_is_written_while_nothing_changes(api: ApiServer, namespace: str) -> None:
    """Many reconciles of all kinds pass here. They read Secrets, and list what there is, also the
    runs of jobs; all else they have from the watches."""
    pipeline = {
        "archive": {"schedule": "@yearly"},
        "addresses": {"keep": "None"},
        "image": "postroad-pipeline:1",
        "executors": {"instances": 1},
    }
    watched = RecordingApi(api.access)
    operator = Running(api, namespace, operator_api=watched)
    await operator.start()
    try:
        await operator.apply_cluster()
        await operator.apply(
            mail_queue(
                namespace,
                view=view("1h", 3),
                workers=workers(),
                intake=intake(),
                pipeline=pipeline,
            )
        )
        await operator.until_ready()
        await operator.until_ready("main", QUEUE_CLUSTER)
        await operator.settle()

        before = len(watched.calls), len(watched.writes)
        await operator.settle()
    finally:
        await operator.stop()

    read = [each.path for each in watched.calls[before[0] :] if each.method == "GET"]
    assert read
    others = [each for each in read if "/secrets/" not in each]
    listed = {each.plural for each in (*WATCHED, JOB, POD)}
    assert {each.rpartition("/")[2] for each in others} <= listed
    assert watched.writes[before[1] :] == []
