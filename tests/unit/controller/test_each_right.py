"""Each right of the shipped role is taken away in turn: what is missing is named, the operator goes
on, and all is well once the right is given back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroad.controller.kubernetes.api import MAIL_QUEUE, MAIL_QUEUE_TASK, QUEUE_CLUSTER
from postroad.controller.run.program import missing_rights
from support.jobs import JobPods
from support.kubectl import manifests
from support.manual_loop import move, run
from support.resources import intake, mail_queue, queue_cluster, secrets, task, workers
from support.running_controller import NAMESPACE, RunningController, running_controller
from support.shipped_roles import PIPELINE

MANIFESTS = Path(__file__).parents[3] / "manifests"
MAX_RETRY = 70
UNTIL_A_DELETION_ENDS = 200

WITHOUT_EFFECT = {
    ("create", "events"),
    ("get", "events"),
    ("patch", "events"),
    # Asked for only where another process scaled a Deployment (`test_autoscalers`).
    ("list", "horizontalpodautoscalers"),
    ("list", "scaledobjects"),
    # Asked for by the API server as a RoleBinding is made (tests/controller/test_rights.py).
    ("bind", "clusterroles"),
}
"""Rights without which the resources are as declared: Events are lost, and the log has why."""


def shipped() -> list[tuple[str, str]]:
    """Return verbs and kinds of the operator's roles, but for Kopf's watches."""
    roles = [
        each
        for file, name in (
            ("install", "postroad-operator"),
            ("executors", "postroad-operator-executors"),
        )
        for each in manifests(MANIFESTS / f"{file}.yaml")
        if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", name)
    ]
    return sorted(
        {
            (verb, resource.removesuffix("/status"))
            for role in roles
            for rule in role["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if verb != "watch" and not resource.endswith("/finalizers")
        }
    )


async def messages(operator: RunningController, seconds: int) -> set[str]:
    """Return the messages of all conditions while time passes."""
    found = set()
    for _ in range(seconds):
        await move(1)
        for kind, name in (
            *((QUEUE_CLUSTER, "main"), (MAIL_QUEUE, "outgoing"), (MAIL_QUEUE_TASK, "task")),
            *((MAIL_QUEUE_TASK, each) for each in ("daily", "brief", "late")),
        ):
            resource = operator.at(kind.plural, NAMESPACE, name) or {}
            conditions = resource.get("status", {}).get("conditions", [])
            found |= {each["message"] for each in conditions}
    return found


async def life(operator: RunningController) -> set[str]:
    """Lead a queue from its creation to its deletion; return the messages of its conditions."""
    for each in (*secrets(NAMESPACE), queue_cluster(NAMESPACE)):
        await operator.create(each)
    await operator.create(
        mail_queue(
            NAMESPACE,
            workers=workers(2),
            intake=intake(outbox={"size": 0}),
            pipeline=PIPELINE,
            networkPolicy={"enabled": True},
            deletionPolicy="Delete",
        )
    )
    found = await messages(operator, 15)
    await operator.create(task(NAMESPACE, operation="Maintain"))
    await operator.create(task(NAMESPACE, "brief", operation="Maintain", ttlSecondsAfterFinished=1))
    await operator.create(task(NAMESPACE, "daily", operation="Maintain", schedule="@daily"))
    pods = asyncio.create_task(JobPods(operator.kubernetes).run())
    found |= await messages(operator, 40)
    pods.cancel()
    await operator.create(task(NAMESPACE, "late", operation="Maintain"))
    without = {"intake": None, "workers": {"replicas": 1}, "pipeline": {"executors": None}}
    await operator.change(without)
    found |= await messages(operator, 10)
    await operator.delete(MAIL_QUEUE, "outgoing")
    return found | await messages(operator, 10)


def test_a_child_that_may_not_be_deleted_is_a_condition_of_the_workers() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(1), intake=intake())
            operator.api.refused.add(("delete", "services"))
            await operator.change({"intake": None})
            await move(5)

            assert operator.condition("WorkersReady")["reason"] == "KubernetesRefused"
            known = operator.found()["status"]["conditions"]
            assert "queue" not in {each["type"] for each in known}

    run(scene())


def test_without_the_rights_to_executors_all_is_ready_and_a_condition_names_the_switch() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            operator.api.refused |= {
                (verb, "rolebindings") for verb in ("create", "patch", "delete")
            }
            assert await missing_rights(operator.api, "mail") == ()
            await operator.declare(workers=workers(2), pipeline=PIPELINE)
            found = operator.condition("PipelineReady")
            assert (found["status"], found["reason"]) == ("False", "KubernetesRefused")
            assert "pipelineExecutors=true" in found["message"]

            await operator.change({"pipeline": {"executors": None}})
            await move(MAX_RETRY)
            assert operator.condition("PipelineReady")["status"] == "True"
            assert operator.at("cronjobs", NAMESPACE, "outgoing-archive") is not None

    run(scene())


@pytest.mark.parametrize("right", shipped(), ids=" ".join)
def test_a_right_that_is_missing_is_named_and_ends_nothing(right: tuple[str, str]) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            operator.api.refused.add(right)
            verb, plural = right
            found = await life(operator)
            named = any(f"{plural} is forbidden: cannot {verb} it" in each for each in found)
            asked = {each.partition("/")[0] for each in await missing_rights(operator.api, "mail")}
            assert named or " ".join(right) in asked or right in WITHOUT_EFFECT

            operator.api.refused.clear()
            await move(UNTIL_A_DELETION_ENDS)
            assert operator.at(MAIL_QUEUE.plural, NAMESPACE, "outgoing") is None
            await operator.create(mail_queue(NAMESPACE, "second", workers=workers()))
            await move(MAX_RETRY)
            for kind, name in ((QUEUE_CLUSTER, "main"), (MAIL_QUEUE, "second")):
                assert operator.condition("Ready", kind, name)["status"] == "True"

    run(scene())
