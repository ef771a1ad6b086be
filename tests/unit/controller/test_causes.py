"""After a change the operator acts in time, whichever of its requests to Kubernetes fails once.

Intervals are those of production: what follows only from the reconcile of the QueueCluster comes
within a minute, everything else within ten seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from postroad.controller.kubernetes.api import (
    CONFIG_MAP,
    DEPLOYMENT,
    MAIL_QUEUE,
    QUEUE_CLUSTER,
    SECRET,
)
from postroad.controller.reads import key_of
from postroad.errors import KubernetesError, KubernetesRefused, KubernetesUnavailable
from support.manual_loop import move, run
from support.memory.fault_injection import Step, away
from support.resources import mail_queue, queue_cluster, secret, secrets, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

AT_ONCE, WITHIN_A_MINUTE = 10, 80
LOGIN = {"username": "postroad", "password": "another"}


def fails_once(
    operator: RunningController, position: int, error: KubernetesError
) -> Callable[[], bool]:
    """Let one request from now on fail; return what tells whether it came."""
    number = len(operator.calls) + position

    def fail(step: Step) -> None:
        if step.number == number:
            raise error

    operator.api.faults.plan = fail
    return lambda: len(operator.calls) > number


async def delete_a_child(operator: RunningController) -> Callable[[], bool]:
    await operator.delete(DEPLOYMENT, "outgoing-worker")
    return lambda: operator.at("deployments", NAMESPACE, "outgoing-worker") is not None


async def change_a_secret(operator: RunningController) -> Callable[[], bool]:
    before = len(operator.connected)
    await operator.user.patch(SECRET, NAMESPACE, "rabbitmq", secret(NAMESPACE, "rabbitmq", LOGIN))
    return lambda: len(operator.connected) > before


async def change_the_cluster(operator: RunningController) -> Callable[[], bool]:
    change = {"spec": {"rabbitmq": {"url": "amqp://elsewhere:5672/%2F"}}}
    await operator.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", change)

    def is_repaired() -> bool:
        found = operator.found(CONFIG_MAP, "outgoing-queue")
        return "elsewhere" in found["data"]["POSTROAD_RABBITMQ_URI"]

    return is_repaired


@pytest.mark.parametrize(
    ("change", "seconds", "error"),
    [
        (delete_a_child, AT_ONCE, KubernetesUnavailable("503")),
        (delete_a_child, AT_ONCE, KubernetesRefused("403")),
        (change_the_cluster, AT_ONCE, KubernetesUnavailable("503")),
        (change_the_cluster, AT_ONCE, KubernetesRefused("403")),
        (change_a_secret, AT_ONCE, KubernetesUnavailable("503")),
        (change_a_secret, AT_ONCE, KubernetesRefused("403")),
    ],
)
def test_no_request_that_fails_loses_a_cause(
    change: Callable[[RunningController], Awaitable[Callable[[], bool]]],
    seconds: int,
    error: KubernetesError,
) -> None:
    async def scene(position: int) -> bool:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            await move(20)
            is_repaired = await change(operator)
            failed = fails_once(operator, position, error)
            await move(seconds)
            assert is_repaired(), f"request {position} failed"
            assert operator.condition("Ready")["status"] == "True", f"request {position} failed"
            return failed()

    position = 0
    failed = [True]

    async def next_scene() -> None:
        failed[0] = await scene(position) and position < 60

    while failed[0]:
        run(next_scene())
        position += 1
    assert position > 2


def test_a_secret_that_was_missing_is_used_within_ten_seconds() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            await operator.delete(SECRET, "rabbitmq")
            await move(AT_ONCE)
            assert operator.condition("Ready", QUEUE_CLUSTER, "main")["status"] == "False"
            await move(3 * WITHIN_A_MINUTE)

            await operator.create(secret(NAMESPACE, "rabbitmq", LOGIN))
            await move(AT_ONCE)

            assert operator.condition("Ready", QUEUE_CLUSTER, "main")["status"] == "True"
            assert operator.condition("Ready")["status"] == "True"

    run(scene())


def test_a_secret_in_the_queues_own_namespace_is_noticed_within_a_minute() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            for each in (*secrets(NAMESPACE), *secrets("other")):
                await operator.create(each)
            await operator.create(queue_cluster(NAMESPACE, allowedNamespaces={"from": "All"}))
            reference = {"name": "main", "namespace": NAMESPACE}
            await operator.create(mail_queue("other", clusterRef=reference, workers=workers()))
            await move(80)

            await operator.user.patch(SECRET, "other", "cassandra", {"data": {"password": None}})
            await move(WITHIN_A_MINUTE)

            found = operator.at("mailqueues", "other", "outgoing")
            assert found
            conditions = {each["type"]: each for each in found["status"]["conditions"]}
            assert conditions["Ready"]["reason"] == "CredentialsMissing"

    run(scene())


def declarations(operator: RunningController) -> int:
    return sum(each.operation == "declare" for each in operator.faults.steps)


def test_a_finalizer_of_the_cluster_wakes_no_queue() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            await operator.create(mail_queue(NAMESPACE, "second", deletionPolicy="Delete"))
            before = declarations(operator)
            await move(8)

            assert declarations(operator) == before + 1, "those of the second queue"

    run(scene())


def fails_for(operator: RunningController, begin: str, seconds: float) -> None:
    """Let requests that begin so fail for some time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds

    def fail(step: Step) -> None:
        if step.operation.startswith(begin) and loop.time() < until:
            raise KubernetesUnavailable("503")

    operator.api.faults.plan = fail


def test_a_lost_server_is_noticed_although_the_requests_after_it_fail() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            await move(20)
            operator.faults.plan = away("broker")
            fails_for(operator, "list mailqueues", 8)

            await move(20)

            assert operator.condition("BrokerReady")["status"] == "False"

    run(scene())


def test_a_status_without_conditions_is_written_anew_and_loses_nothing() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            before = operator.found()["status"]
            written = await operator.user.replace_status(
                MAIL_QUEUE, {**operator.found(), "status": {**before, "conditions": []}}
            )
            assert written
            configurations = []
            for _ in range(40):
                await move(1)
                configurations.append(operator.found()["status"].get("configuration"))

            assert operator.condition("Ready")["status"] == "True"
            assert all(each == before["configuration"] for each in configurations)
            (event,) = operator.events("ConfigurationAccepted")
            assert "series" not in event

    run(scene())


def test_the_event_about_a_retained_queue_waits_for_the_api_server() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            fails_for(operator, "create events", 5)

            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(20)

            assert len(operator.events("Retained")) == 1

    run(scene())


def test_a_second_deletion_outlives_the_announcement_of_the_first() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            causes = operator.controller.causes
            first, second = mail_queue(NAMESPACE), mail_queue(NAMESPACE)
            key = key_of(first)

            for uid, body in (("one", first), ("two", second)):
                body["metadata"]["uid"] = uid
                causes.on_event(MAIL_QUEUE, body, gone=True, routine=False)
            causes.announced(key, first)
            assert causes.deleted(key) is second
            causes.announced(key, second)
            assert causes.deleted(key) is None

    run(scene())
