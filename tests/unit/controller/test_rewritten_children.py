"""Children that an admission webhook rewrites are applied once, and are no repair."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import pytest

from postroad.controller.kubernetes.api import DEPLOYMENT
from postroad.controller.kubernetes.drift import (
    ANSWER_AGE,
    MAX_ANSWERS,
    MAX_REPAIRS,
    ApplyResponses,
    with_hash,
)
from postroad.ports.kubernetes import Object
from support.manual_loop import move, run
from support.memory.clock import ManualClock
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import ObjectPlace
from support.resources import intake, mail_queue, queue_cluster, secrets, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

MIRROR = "mirror.example/"
A_FULL_RECONCILE = 400


def mirrored(operator: RunningController) -> Callable[[ObjectPlace, Object], Object]:
    """Let a webhook rewrite the image of each Deployment; return what stores without it."""
    put = operator.kubernetes.put

    def mutating(place: ObjectPlace, wanted: Object) -> Object:
        if place.plural == "deployments":
            for each in wanted["spec"]["template"]["spec"]["containers"]:
                each["image"] = MIRROR + each["image"].removeprefix(MIRROR)
        return put(place, wanted)

    operator.kubernetes.put = mutating  # type: ignore[method-assign]
    return put


def applies(operator: RunningController) -> int:
    return len([each for each in operator.calls if each.startswith("patch deployments")])


def rewriting(operator: RunningController, plural: str, path: list[str], value: object) -> None:
    """Let a webhook set a field of each object of a kind."""
    put = operator.kubernetes.put

    def mutating(place: ObjectPlace, wanted: Object) -> Object:
        if place.plural == plural:
            part = wanted
            for each in path[:-1]:
                part = part[each]
            part[path[-1]] = value
        return put(place, wanted)

    operator.kubernetes.put = mutating  # type: ignore[method-assign]


def image(operator: RunningController) -> str:
    deployment = operator.found(DEPLOYMENT, "outgoing-worker")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def test_child_that_a_webhook_rewrites_is_applied_rarely_and_no_repair() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            mirrored(operator)
            await operator.declare(workers=workers(2))
            await move(60)
            assert image(operator).startswith(MIRROR)
            assert operator.condition("Ready")["status"] == "True"
            before = applies(operator)
            await move(ANSWER_AGE.total_seconds() / 2)
            assert applies(operator) == before
            await move(3600)
            assert applies(operator) <= before + 6
            assert operator.events("Repaired") == []

    run(scene())


def test_operator_that_begins_beside_a_rewritten_child_reports_no_repair() -> None:
    async def scene() -> None:
        async with running_controller() as first:
            mirrored(first)
            await first.declare(workers=workers(2))
            await move(60)
        async with running_controller(beside=first) as operator:
            await move(900)
            assert image(operator).startswith(MIRROR)
            assert operator.events("Repaired") == []
            assert applies(operator) <= 3

    run(scene())


def test_change_by_hand_of_a_rewritten_child_is_undone_and_reported() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            mirrored(operator)
            await operator.declare(workers=workers(2))
            await move(60)
            place = DEPLOYMENT, NAMESPACE, "outgoing-worker"
            await operator.user.patch(*place, {"spec": {"replicas": 7}})
            await move(10)
            assert operator.found(DEPLOYMENT, "outgoing-worker")["spec"]["replicas"] == 2
            (event,) = operator.events("Repaired")
            assert "outgoing-worker was changed" in event["note"]

    run(scene())


def test_change_of_the_spec_reaches_a_rewritten_child() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            mirrored(operator)
            await operator.declare(workers=workers(2))
            await move(60)
            await operator.change({"workers": {"replicas": 3}})
            await move(10)
            assert operator.found(DEPLOYMENT, "outgoing-worker")["spec"]["replicas"] == 3
            assert operator.events("Repaired") == []

    run(scene())


@pytest.mark.parametrize(
    ("plural", "path", "value", "condition"),
    [
        ("deployments", ["spec", "replicas"], 0, "WorkersReady"),
        ("configmaps", ["data"], {}, "WorkersReady"),
        ("services", ["spec", "selector"], {"app": "another"}, "IntakeReady"),
        ("services", ["spec", "ports"], [{"name": "smtp", "port": 26}], "IntakeReady"),
    ],
)
def test_rewriting_without_which_a_queue_works_not_shows_until_it_ends(
    plural: str, path: list[str], value: object, condition: str
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            put = operator.kubernetes.put
            rewriting(operator, plural, path, value)
            for each in (*secrets(NAMESPACE), queue_cluster(NAMESPACE)):
                await operator.create(each)
            await operator.create(mail_queue(NAMESPACE, workers=workers(2), intake=intake()))
            await move(60)
            found = operator.condition(condition)
            assert (found["status"], found["reason"]) == ("False", "Rewritten")
            assert f"({'.'.join(path)})" in operator.condition("Ready")["message"]
            assert operator.condition("Reconciling")["status"] == "True"
            assert operator.events("Repaired") == []

            operator.kubernetes.put = put  # type: ignore[method-assign]
            await move(A_FULL_RECONCILE + ANSWER_AGE.total_seconds())
            assert operator.condition("Ready")["status"] == "True"
            assert operator.events("Repaired") == []

    run(scene())


def test_webhook_that_writes_another_value_each_time_is_no_repair() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(2))
            put, numbers = operator.kubernetes.put, count()

            def mutating(place: ObjectPlace, wanted: Object) -> Object:
                status = (operator.kubernetes.objects.get(place) or {}).get("status")
                if place.plural == "deployments" and wanted.get("status") == status:
                    (container,) = wanted["spec"]["template"]["spec"]["containers"]
                    container["image"] = f"mirror-{next(numbers)}"
                return put(place, wanted)

            operator.kubernetes.put = mutating  # type: ignore[method-assign]
            await operator.change({"workers": {"concurrency": 17}})
            await move(3600)
            assert applies(operator) < 12
            assert operator.events("Repaired") == []

    run(scene())


def test_controller_that_undoes_each_repair_is_let_alone_for_ten_minutes() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(2))
            other = MemoryKubernetes(operator.kubernetes, "other-controller")

            async def undo() -> None:
                async for _, body in operator.kubernetes.watch(DEPLOYMENT):
                    if body["spec"].get("replicas") == 2:
                        name, change = body["metadata"]["name"], {"spec": {"replicas": 0}}
                        await other.patch(DEPLOYMENT, NAMESPACE, name, change)

            undoing = asyncio.create_task(undo())
            before = applies(operator)
            await move(3600)
            undoing.cancel()

            assert applies(operator) - before < 2 * MAX_REPAIRS * 3600 / ANSWER_AGE.total_seconds()
            found = operator.condition("WorkersReady")
            assert (found["status"], found["reason"]) == ("False", "Rewritten")

            await move(A_FULL_RECONCILE + ANSWER_AGE.total_seconds())
            assert operator.found(DEPLOYMENT, "outgoing-worker")["spec"]["replicas"] == 2

    run(scene())


def test_answers_are_kept_of_a_bounded_number_of_children() -> None:
    answers = ApplyResponses(ManualClock())
    wanted = with_hash({"metadata": {"name": "c"}, "data": {"a": "wanted"}})
    for number in range(MAX_ANSWERS + 5):
        metadata = {**wanted["metadata"], "uid": f"uid-{number}"}
        answers.note(wanted, {"metadata": metadata, "data": {"a": "rewritten"}})

    assert len(answers._known) <= MAX_ANSWERS
    assert answers.is_settled(wanted, {"metadata": metadata, "data": {"a": "rewritten"}})
    assert not answers.is_settled(wanted, {"metadata": metadata, "data": {"a": "by hand"}})
    assert not answers.is_settled(wanted, None)
