"""A quota refuses the MailQueue that comes last, and takes nothing from those that were there."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.controller.cluster.users import granted_workers, with_a_place
from postroad.controller.kubernetes.api import MAIL_QUEUE, QUEUE_CLUSTER
from postroad.controller.reads import PATIENCE
from postroad.ports.kubernetes import Object
from support.manual_loop import move, run
from support.resources import mail_queue, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

MAX_RETRY = 70


def user(uid: str, created: int, *, configured: bool = False) -> Object:
    status = {"configuration": {"version": 1}} if configured else {"observedGeneration": -1}
    metadata = {"uid": uid, "namespace": "mail", "name": uid}
    return {
        "metadata": metadata | {"creationTimestamp": f"2026-01-01T00:00:{created:02}Z"},
        "status": status,
    }


@pytest.mark.parametrize(
    ("most", "known", "held"),
    [
        (None, "", "abcd"),
        (4, "", "abcd"),
        (3, "", "acd"),
        (3, "b", "bcd"),
        (2, "ab", "cd"),
        (0, "", "cd"),
    ],
)
def test_places_go_to_those_that_have_begun_then_in_the_order_of_creation(
    most: int | None, known: str, held: str
) -> None:
    users = [
        user("b", 2),
        user("d", 9, configured=True),
        user("a", 1),
        user("c", 5, configured=True),
    ]

    names = frozenset(f"mail/{each}" for each in known)
    assert with_a_place(users, most, names) == {f"mail/{each}" for each in held}


@pytest.mark.parametrize(
    ("wanted", "most", "present", "granted"),
    [(5, None, 0, 5), (5, 3, 0, 3), (2, 3, 0, 2), (5, 3, 4, 4), (2, 3, 4, 2), (5, 3, 9, 5)],
)
def test_workers_that_are_there_stay(
    wanted: int, most: int | None, present: int, granted: int
) -> None:
    assert granted_workers(wanted, most, present) == granted


async def set_quota(operator: RunningController, **quota: int | None) -> None:
    await operator.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", {"spec": {"quota": quota}})
    await move(10)


def reason(operator: RunningController, name: str) -> Any:
    return operator.condition("Ready", name=name).get("reason")


def test_the_queue_that_comes_last_waits_for_a_place_and_the_others_go_on() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            await set_quota(operator, queues=1)
            await operator.create(mail_queue(NAMESPACE, "second", workers=workers()))
            await move(MAX_RETRY)

            assert reason(operator, "second") == "QuotaExceeded"
            assert operator.at("configmaps", NAMESPACE, "second-queue") is None
            queues = {str(step.operation) for step in operator.faults.steps}
            assert not any("mail.second" in each for each in queues)
            await set_quota(operator, queues=0)
            assert operator.condition("Ready")["status"] == "True"

            await set_quota(operator, queues=1)
            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(MAX_RETRY)
            await operator.create(mail_queue(NAMESPACE, workers=workers()))
            await move(PATIENCE.total_seconds() + MAX_RETRY)
            assert operator.condition("Ready")["status"] == "True", "it was only replaced"
            assert reason(operator, "second") == "QuotaExceeded"

            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(PATIENCE.total_seconds() + 2 * MAX_RETRY)
            assert operator.condition("Ready", name="second")["status"] == "True"

    run(scene())


def test_refused_queues_that_ask_again_cost_no_lists() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            await set_quota(operator, queues=1)
            names = [f"later-{number}" for number in range(8)]
            for each in names:
                await operator.create(mail_queue(NAMESPACE, each))
            await move(5)
            before = len(operator.calls)

            await move(MAX_RETRY)

            calls = [each.split()[:2] for each in operator.calls[before:]]
            assert {reason(operator, each) for each in names} == {"QuotaExceeded"}
            assert ["list", "mailqueues"] not in calls

    run(scene())


def test_more_workers_than_the_quota_are_not_made_and_those_there_stay() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(replicas=4))
            await set_quota(operator, workersPerQueue=3)
            assert operator.condition("WorkersReady")["status"] == "True"

            await operator.change({"workers": {"replicas": 6}})
            await move(10)
            found = operator.condition("WorkersReady")
            assert found["reason"] == "QuotaExceeded"
            assert "4 of 6 workers" in found["message"]
            deployment = operator.at("deployments", NAMESPACE, "outgoing-worker")
            assert deployment
            assert deployment["spec"]["replicas"] == 4

            await set_quota(operator, workersPerQueue=None)
            await move(MAX_RETRY)
            assert operator.condition("WorkersReady")["status"] == "True"
            deployment = operator.at("deployments", NAMESPACE, "outgoing-worker")
            assert deployment
            assert deployment["spec"]["replicas"] == 6

    run(scene())
