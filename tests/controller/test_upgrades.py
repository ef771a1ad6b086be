"""A newer operator over what an older one made, with a real API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroad.controller.kubernetes.api import DEPLOYMENT, QUEUE_CLUSTER
from support import running_operator
from support.resources import mail_queue, workers
from support.running_operator import Running

pytestmark = pytest.mark.needs("kubernetes")

NEW = "postroad:newer"


async def template(operator: Running) -> dict[str, Any]:
    found = await operator.api.get(DEPLOYMENT, operator.namespace, "outgoing-worker")
    assert found
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


async def test_a_newer_operator_upgrades_when_there_is_room(
    operator: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await operator.apply_cluster(upgrades={"atOnce": 0})
    await operator.apply(mail_queue(operator.namespace, workers=workers()))
    await operator.until_ready()
    before = await template(operator)
    await operator.stop()

    monkeypatch.setattr(running_operator, "IMAGE", NEW)
    newer = Running(operator.api, operator.namespace, memory=operator.memory)
    await newer.start()
    try:
        await newer.until(
            lambda found: found["UpToDate"]["reason"] == "UpgradesHeld", "main", QUEUE_CLUSTER
        )
        assert await template(newer) == before

        change = {"spec": {"upgrades": {"atOnce": 1}}}
        await newer.api.patch(QUEUE_CLUSTER, newer.namespace, "main", change)
        for _ in range(200):
            if (await template(newer))["containers"][0]["image"] == NEW:
                break
            await asyncio.sleep(0.1)
        await newer.until(
            lambda found: found["UpToDate"]["status"] == "True", "main", QUEUE_CLUSTER
        )
        assert (await template(newer))["containers"][0]["image"] == NEW
    finally:
        await newer.stop()
