"""What is missing for a moment changes nothing that runs, and comes back without help."""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from postroad.controller.kubernetes.api import DEPLOYMENT, MAIL_QUEUE, QUEUE_CLUSTER, SECRET
from postroad.controller.reads import Absences
from support.manual_loop import move, run
from support.memory.clock import ManualClock
from support.memory.fault_injection import Fault
from support.memory.kubernetes.world import ObjectPlace
from support.resources import mail_queue, workers
from support.running_controller import NAMESPACE, running_controller

WORKERS = "outgoing-worker"
A_MINUTE = 70


@pytest.mark.parametrize("name", ["rabbitmq", "cassandra", "s3"])
@pytest.mark.parametrize("seconds", [1, 30, 400])
def test_a_secret_that_is_replaced_leaves_pods_and_connections_as_they_are(
    name: str, seconds: int
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(2))
            before = deepcopy(operator.found(DEPLOYMENT, WORKERS))
            secret = operator.found(SECRET, name)
            connections = len(operator.connected)
            await operator.delete(SECRET, name)
            await move(seconds)
            metadata = {"name": name, "namespace": NAMESPACE}
            await operator.create({**secret, "metadata": metadata})
            await move(A_MINUTE)

            assert operator.condition("Ready")["status"] == "True"
            assert operator.found(DEPLOYMENT, WORKERS) == before
            assert len(operator.connected) == connections

    run(scene())


@pytest.mark.parametrize("value", ["/////w==", "!!"], ids=["no UTF-8", "no base64"])
def test_a_secret_that_is_no_text_is_named_with_its_key(value: str) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(1))
            change: dict[str, Any] = {"data": {"username": value}}
            await operator.user.patch(SECRET, NAMESPACE, "cassandra", change)
            await move(A_MINUTE)

            message = operator.condition("Ready", QUEUE_CLUSTER, "main")["message"]
            assert f"`username` of Secret {NAMESPACE}/cassandra is not text" in message
            assert value not in message

    run(scene())


def test_a_child_that_went_unseen_is_back_soon_after_the_api_server() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(1))
            operator.api.faults.plan = lambda step: Fault.AWAY
            await move(600)
            operator.kubernetes.objects.pop(ObjectPlace("deployments", NAMESPACE, WORKERS))
            operator.api.faults.plan = lambda step: None
            await move(A_MINUTE)

            assert operator.at("deployments", NAMESPACE, WORKERS) is not None

    run(scene())


def test_a_list_of_nothing_ends_no_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> set[str]:
        return set()

    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(1))
            monkeypatch.setattr(operator.api, "uids", nothing)
            await move(700)

            assert operator.condition("Ready")["status"] == "True"
            assert not operator.events("Retained")
            await operator.delete(DEPLOYMENT, WORKERS)
            await move(10)
            assert operator.at("deployments", NAMESPACE, WORKERS) is not None

    run(scene())


def test_a_fault_about_missed_deletions_ends_no_reconciles(monkeypatch: pytest.MonkeyPatch) -> None:
    async def confused(*_: object) -> set[str]:
        raise TypeError("'int' object is not iterable")

    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(1))
            with monkeypatch.context() as patch:
                patch.setattr(operator.api, "uids", confused)
                await move(700)
            await operator.change({"workers": workers(2)})
            await move(10)

            assert operator.found(DEPLOYMENT, WORKERS)["spec"]["replicas"] == 2

    run(scene())


def test_an_object_without_a_version_that_compares_holds_up_no_other() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            odd = deepcopy(operator.found())
            odd["metadata"] |= {"uid": "odd", "resourceVersion": "odd"}
            with pytest.raises(ValueError, match="odd"):
                operator.controller.causes.on_event(MAIL_QUEUE, odd, gone=False, routine=False)
            await operator.change({"workers": workers(2)})
            await operator.create(mail_queue(NAMESPACE, "second"))
            await move(700)

            assert operator.found(DEPLOYMENT, WORKERS)["spec"]["replicas"] == 2
            assert operator.condition("Ready", name="second")["status"] == "True"

    run(scene())


def test_an_absence_that_was_not_looked_at_begins_anew() -> None:
    clock = ManualClock()
    absences = Absences(clock)
    looks = []
    for after in (0, 6, 3, 1, 6, 10, 6, 4):
        clock.jump(timedelta(minutes=after))
        looks.append(absences.lasts("first"))

    assert looks == [False, False, False, True, True, False, False, True]
