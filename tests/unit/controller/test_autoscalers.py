"""The replicas of workers and intakes are an autoscaler's as long as there is one, and the spec's
otherwise."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from postroad.controller.kubernetes.api import AUTOSCALERS, DEPLOYMENT
from postroad.controller.mailqueue.autoscaling import PATIENCE
from postroad.ports.kubernetes import Kind, Object
from support.deployments import scale
from support.manual_loop import move, run
from support.memory.kubernetes.world import ObjectPlace
from support.repository import ROOT
from support.resources import intake, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

HORIZONTAL, SCALED_OBJECT = AUTOSCALERS
WORKERS = ObjectPlace("deployments", NAMESPACE, "outgoing-worker")
INTAKE = ObjectPlace("deployments", NAMESPACE, "outgoing-intake")
A_FULL_RECONCILE = 400
A_MINUTE = 60
"""Within which the spec rules again after an autoscaler is deleted."""


def autoscaler(of: Kind, kind: str, name: str) -> Object:
    return {
        "apiVersion": of.api_version,
        "kind": of.name,
        "metadata": {"name": "any", "namespace": NAMESPACE},
        "spec": {"scaleTargetRef": {"kind": kind, "name": name}},
    }


@asynccontextmanager
async def declared() -> AsyncIterator[RunningController]:
    async with running_controller() as operator:
        await operator.declare(workers=workers(replicas=2))
        await move(20)
        yield operator


def replicas(operator: RunningController, name: str = "outgoing-worker") -> int:
    found: dict[str, Any] = operator.found(DEPLOYMENT, name)["spec"]
    number: int = found["replicas"]
    return number


@pytest.mark.parametrize(
    ("kind", "manager", "wanted"),
    [
        (HORIZONTAL, "kube-controller-manager", 5),
        (SCALED_OBJECT, "keda", 0),
        (SCALED_OBJECT, "kube-controller-manager", 5),
    ],
)
def test_an_autoscaler_has_the_replicas_until_it_is_deleted(
    kind: Kind, manager: str, wanted: int
) -> None:
    async def scene() -> None:
        async with declared() as operator:
            made = await operator.user.create(
                kind, autoscaler(kind, "Deployment", "outgoing-worker")
            )
            scale(operator.kubernetes, WORKERS, wanted, manager)
            await operator.change({"workers": {"concurrency": 3}})
            await move(A_FULL_RECONCILE)
            assert replicas(operator) == wanted

            await operator.user.delete(kind, made)
            await move(PATIENCE.total_seconds() - 1)
            assert replicas(operator) == wanted, "it may only be replaced"
            await move(A_MINUTE - PATIENCE.total_seconds() + 1)
            assert replicas(operator) == 2

            await operator.change({"workers": {"replicas": 3}})
            await move(5)
            assert replicas(operator) == 3
            assert operator.events("Repaired") == []

    run(scene())


def test_an_intake_has_the_replicas_of_its_autoscaler_until_that_is_deleted() -> None:
    async def scene() -> None:
        async with declared() as operator:
            await operator.change({"intake": intake(replicas=2)})
            await move(20)
            wanted = autoscaler(HORIZONTAL, "Deployment", "outgoing-intake")
            made = await operator.user.create(HORIZONTAL, wanted)
            scale(operator.kubernetes, INTAKE, 7, "kube-controller-manager")
            await move(A_FULL_RECONCILE)
            assert replicas(operator, "outgoing-intake") == 7
            assert replicas(operator) == 2

            await operator.user.delete(HORIZONTAL, made)
            await move(A_MINUTE)
            assert replicas(operator, "outgoing-intake") == 2

    run(scene())


def test_autoscalers_of_the_page_scale_what_there_is_by_metrics_that_there_are() -> None:
    text = (ROOT / "docs/operator/scaling.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    shown = [each for each in map(yaml.safe_load, blocks) if "scaleTargetRef" in each["spec"]]
    metrics = {each.name for each in REGISTRY.collect()}

    assert {each["kind"] for each in shown} == {kind.name for kind in AUTOSCALERS}
    for each in shown:
        target = each["spec"]["scaleTargetRef"]["name"]
        (metric,) = set(re.findall(r"postroad_\w+", str(each)))
        assert metric in metrics
        assert (target, metric) in {
            ("outgoing-worker", "postroad_queue_due_mails"),
            ("outgoing-intake", "postroad_intake_sessions"),
        }


def test_operator_that_begins_while_an_autoscaler_is_replaced_leaves_the_replicas() -> None:
    async def scene() -> None:
        async with declared() as first:
            wanted = autoscaler(HORIZONTAL, "Deployment", "outgoing-worker")
            made = await first.user.create(HORIZONTAL, wanted)
            scale(first.kubernetes, WORKERS, 20, "kube-controller-manager")
            await move(A_FULL_RECONCILE)
            await first.user.delete(HORIZONTAL, made)
        async with running_controller(beside=first) as operator:
            operator.fill_indexes()
            await move(PATIENCE.total_seconds() - 5)
            assert replicas(operator) == 20
            made = await operator.user.create(HORIZONTAL, wanted)
            await move(A_FULL_RECONCILE)
            assert replicas(operator) == 20

            await operator.user.delete(HORIZONTAL, made)
            await move(A_MINUTE)
            assert replicas(operator) == 2
            scale(operator.kubernetes, WORKERS, 7, "kubectl")
            await move(5)
            assert replicas(operator) == 2

    run(scene())


def test_a_deployment_that_is_scaled_by_hand_is_scaled_back() -> None:
    async def scene() -> None:
        async with declared() as operator:
            other = autoscaler(HORIZONTAL, "Deployment", "another")
            await operator.user.create(HORIZONTAL, other)
            scale(operator.kubernetes, WORKERS, 7, "kubectl")
            await move(5)

            assert replicas(operator) == 2
            assert len(operator.events("Repaired")) == 1

    run(scene())


def test_autoscalers_are_asked_for_only_where_another_process_scaled() -> None:
    async def scene() -> None:
        async with declared() as operator:
            await move(A_FULL_RECONCILE)

            assert not [each for each in operator.calls if HORIZONTAL.plural in each]

    run(scene())


def test_a_right_that_is_missing_is_a_condition() -> None:
    async def scene() -> None:
        async with declared() as operator:
            operator.api.refused.add(("list", HORIZONTAL.plural))
            scale(operator.kubernetes, WORKERS, 5, "kube-controller-manager")
            await move(5)

            assert operator.condition("WorkersReady")["reason"] == "KubernetesRefused"
            assert replicas(operator) == 5

    run(scene())
