"""A HorizontalPodAutoscaler of a real Kubernetes, which follows what pods use, has the replicas of
workers until it is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from postroad.controller.kubernetes.api import AUTOSCALERS, DEPLOYMENT, POD
from postroad.controller.mailqueue import autoscaling
from postroad.controller.status.conditions import timestamp
from postroad.errors import KubernetesConflict
from postroad.ports.kubernetes import Object
from support.memory.clock import START
from support.pod_metrics import PodMetrics, pod_metrics
from support.resources import mail_queue, workers
from support.running_operator import QUICK, Running

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.timeout(400, func_only=True)]

HORIZONTAL, _ = AUTOSCALERS
SECONDS = 120
"""For what the HPA controller does, which looks each 15 s."""


def autoscaler(namespace: str) -> Object:
    metric = {"name": "memory", "target": {"type": "AverageValue", "averageValue": "100Mi"}}
    return {
        "apiVersion": HORIZONTAL.api_version,
        "kind": HORIZONTAL.name,
        "metadata": {"name": "outgoing", "namespace": namespace},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": DEPLOYMENT.api_version,
                "kind": DEPLOYMENT.name,
                "name": "outgoing-worker",
            },
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": metric}],
        },
    }


async def replicas(operator: Running) -> int:
    found = await operator.api.get(DEPLOYMENT, operator.namespace, "outgoing-worker")
    assert found
    number: int = found["spec"]["replicas"]
    return number


async def until_replicas(operator: Running, wanted: int) -> None:
    deadline = asyncio.get_running_loop().time() + SECONDS
    while (found := await replicas(operator)) != wanted:
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(0.2)


@asynccontextmanager
async def running_pods(operator: Running, metrics: PodMetrics) -> AsyncIterator[None]:
    """Let pods run and be ready, as a node would, and have metrics."""

    async def tend() -> None:
        while True:
            metrics.pods = await operator.api.list(POD, operator.namespace)
            for each in metrics.pods:
                if each["status"]["phase"] == "Pending":
                    with suppress(KubernetesConflict):
                        await operator.api.replace_status(POD, run(each))
            await asyncio.sleep(0.2)

    tending = asyncio.create_task(tend())
    try:
        yield
    finally:
        tending.cancel()
        with suppress(asyncio.CancelledError):
            await tending


def run(pod: Object) -> Object:
    since: dict[str, Any] = {"lastTransitionTime": timestamp(START)}
    ready = [{"type": "Ready", "status": "True", **since}]
    status = {"phase": "Running", "startTime": timestamp(START), "conditions": ready}
    return {**pod, "status": {**pod["status"], **status}}


async def test_an_autoscaler_has_the_workers_until_it_is_deleted_and_then_the_spec(
    operator: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoscaling, "PATIENCE", 5 * QUICK.full)
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, workers=workers(replicas=1)))
    async with (
        pod_metrics(operator.api, operator.namespace, tmp_path) as metrics,
        running_pods(operator, metrics),
    ):
        await operator.until_ready()
        metrics.memory = "150Mi"
        made = await operator.api.create(HORIZONTAL, autoscaler(operator.namespace))
        await until_replicas(operator, 3)

        await operator.change({"workers": {"concurrency": 11}})
        await operator.until_ready()
        await operator.settle()
        assert await replicas(operator) == 3
        assert (await operator.status())["workers"]["desired"] == 3

        await operator.api.delete(HORIZONTAL, made)
        await until_replicas(operator, 1)
