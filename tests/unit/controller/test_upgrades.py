"""A newer operator replaces the pods of a few MailQueues at once, and none without need."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest

from postroad.controller.kubernetes.api import (
    DEPLOYMENT,
    INSTANCE,
    MAIL_QUEUE,
    POD,
    QUEUE_CLUSTER,
    SECRET,
    Key,
)
from postroad.controller.pods import manifests
from postroad.controller.pods.pods import pod_template
from postroad.controller.pods.upgrades import Progress, is_rolling
from postroad.controller.spec.cluster import pace_of
from postroad.errors import KubernetesUnavailable
from support.deployments import EXCEEDED
from support.manual_loop import move, run
from support.memory.fault_injection import Step
from support.memory.kubernetes.world import ObjectPlace
from support.resources import intake, mail_queue, queue_cluster, secret, secrets, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

QUEUES = 6
OLD, NEW = "postroad:1", "postroad:2"
A_FULL_RECONCILE = 400


def image_of(deployment: dict[str, Any]) -> str:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    image: str = container["image"]
    return image


def deployments(operator: RunningController) -> dict[str, dict[str, Any]]:
    return {
        place.name: each
        for place, each in operator.kubernetes.objects.items()
        if place.plural == DEPLOYMENT.plural
    }


def images(operator: RunningController) -> Counter[str]:
    return Counter(image_of(each) for each in deployments(operator).values())


async def declare(operator: RunningController, at_once: int, **spec: Any) -> None:
    for each in secrets(NAMESPACE):
        await operator.create(each)
    await operator.create(queue_cluster(NAMESPACE, upgrades={"atOnce": at_once}))
    for number in range(QUEUES):
        queue = mail_queue(NAMESPACE, f"queue-{number}", workers=workers(replicas=2), **spec)
        await operator.create(queue)
    await move(30)
    assert images(operator) == {OLD: len(deployments(operator))}
    assert len(deployments(operator)) >= QUEUES


def up_to_date(operator: RunningController) -> dict[str, Any]:
    return operator.condition("UpToDate", QUEUE_CLUSTER, "main")


def upgraded(before: RunningController, *, broken: bool = False) -> Any:
    """Return the operator of the next release, over what the one before left."""
    return running_controller(beside=before, image=NEW, broken={NEW} if broken else ())


@pytest.mark.parametrize("at_once", [1, 3])
def test_as_many_queues_roll_at_once_as_the_cluster_allows(at_once: int) -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, at_once)
        async with upgraded(first, broken=True) as second:
            await move(200)

            assert images(second) == {OLD: QUEUES - at_once, NEW: at_once}
            condition = up_to_date(second)
            assert (condition["status"], condition["reason"]) == ("False", "UpgradeWaits")
            assert second.condition("Ready", QUEUE_CLUSTER, "main")["status"] == "True"
            upgrade = second.found(QUEUE_CLUSTER, "main")["status"]["upgrade"]
            assert upgrade == {"waiting": QUEUES - at_once, "rolling": at_once}
            waiting = [
                each
                for each in range(QUEUES)
                if second.condition("UpToDate", MAIL_QUEUE, f"queue-{each}")["status"] == "False"
            ]
            assert len(waiting) == QUEUES - at_once
            assert {
                second.condition("Ready", MAIL_QUEUE, f"queue-{each}")["status"] for each in waiting
            } == {"True"}

    run(scene())


def test_an_upgrade_that_hangs_blocks_the_others_after_a_restart_too() -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, 2)
        async with upgraded(first, broken=True) as second:
            await move(60)
        async with upgraded(second, broken=True) as third:
            await move(A_FULL_RECONCILE)

            assert images(third) == {OLD: QUEUES - 2, NEW: 2}

    run(scene())


def test_the_next_begins_when_one_has_ended_until_all_are_up_to_date() -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, 3)
        async with upgraded(first) as second:
            most, rolled = 0, 0
            for _ in range(60):
                before = rolled
                await move(1)
                rolled = images(second)[NEW]
                most = max(most, rolled - before)

            assert images(second) == {NEW: QUEUES}
            assert 0 < most <= 3
            await move(10)
            assert up_to_date(second)["status"] == "True"
            assert "upgrade" not in second.found(QUEUE_CLUSTER, "main")["status"]
            assert second.condition("UpToDate", MAIL_QUEUE, "queue-1")["status"] is None

    run(scene())


def test_a_cluster_is_not_up_to_date_while_the_last_queues_roll() -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, QUEUES + 4)
        async with upgraded(first, broken=True) as second:
            for _ in range(8):
                await move(60)
                assert images(second) == {NEW: QUEUES}
                condition = up_to_date(second)
                assert (condition["status"], condition["reason"]) == ("False", "UpgradeRolls")
                replaced = ", ".join(f"{NAMESPACE}/queue-{each}" for each in range(5))
                assert condition["message"] == f"being replaced are those of {replaced}, …"
                upgrade = second.found(QUEUE_CLUSTER, "main")["status"]["upgrade"]
                assert upgrade == {"waiting": 0, "rolling": QUEUES}
            await move(3 * 60)
            assert up_to_date(second)["reason"] == "UpgradeBlocked"
        async with running_controller(beside=second, image="postroad:3") as third:
            await move(60)
            assert images(third) == {"postroad:3": QUEUES}
            assert up_to_date(third)["status"] == "True"
            assert "upgrade" not in third.found(QUEUE_CLUSTER, "main")["status"]

    run(scene())


@pytest.mark.parametrize("paused", [False, True])
def test_pods_that_cannot_be_compared_are_not_known_to_be_up_to_date(paused: bool) -> None:
    """Those of a paused queue are left as they are on purpose."""
    login = {"secretRef": {"name": "relay"}}
    relay = {"host": "sink", "port": 2525, "tls": {"mode": "Required"}, "login": login}
    spec = {"workers": {"replicas": 2, "handler": {"relay": relay}}}

    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await first.create(secret(NAMESPACE, "relay", {"username": "u", "password": "p"}))
            await declare(first, QUEUES)
            await first.create(mail_queue(NAMESPACE, "without-login", **spec))
            await move(30)
            assert images(first) == {OLD: QUEUES + 1}
            await first.delete(SECRET, "relay")
            if paused:
                await first.change({"paused": True}, "without-login")
                await move(10)
        async with upgraded(first) as second:
            await move(150)
            assert images(second) == {NEW: QUEUES, OLD: 1}
            condition = up_to_date(second)
            if paused:
                assert condition["status"] == "True"
                return
            assert (condition["status"], condition["reason"]) == ("Unknown", "NotAllKnown")
            assert condition["message"].endswith("the pods of mail/without-login")
            assert second.condition("Ready", QUEUE_CLUSTER, "main")["status"] == "True"

            await second.create(secret(NAMESPACE, "relay", {"username": "u", "password": "p"}))
            await move(400)
            assert images(second) == {NEW: QUEUES + 1}
            assert up_to_date(second)["status"] == "True"

    run(scene())


def test_a_message_names_those_that_are_replaced_where_there_are_any() -> None:
    key = Key(MAIL_QUEUE.name, NAMESPACE, "queue-0")

    begun = Progress(2, [key]).finding(1).message
    stopped = Progress(2, [key], [key]).finding(1).message
    held = Progress(2, []).finding(pace_of({"spec": {"paused": True}}).at_once).message

    assert "at most 1 at once; being replaced are those of mail/queue-0" in begun
    assert "replaced are" not in stopped
    assert held.endswith("keep their pods: spec.upgrades.atOnce is 0, or spec.paused is true")
    assert stopped.endswith("at most 1 at once; new pods do not get ready: mail/queue-0")


def test_without_room_all_pods_stay_and_what_users_change_has_its_effect() -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, 0, intake=intake())
        async with upgraded(first) as second:
            await move(60)
            assert images(second) == {OLD: 2 * QUEUES}
            assert up_to_date(second)["reason"] == "UpgradesHeld"
            before = deployments(second)

            await second.change({"image": NEW}, "queue-0")
            await second.change({"workers": {"concurrency": 7}}, "queue-1")
            await second.change({"workers": {"replicas": 5}}, "queue-2")
            await second.delete(DEPLOYMENT, "queue-3-worker")
            await move(20)

            after = deployments(second)
            assert image_of(after["queue-0-worker"]) == image_of(after["queue-0-intake"]) == NEW
            for name in ("queue-1-worker", "queue-2-worker", "queue-1-intake"):
                assert image_of(after[name]) == OLD
            templates = [each["queue-1-worker"]["spec"]["template"] for each in (before, after)]
            assert templates[0] != templates[1]
            assert after["queue-2-worker"]["spec"]["replicas"] == 5
            assert image_of(after["queue-3-worker"]) == NEW, "no pods to replace"

            change: dict[str, Any] = {"spec": {"rabbitmq": {"url": "amqp://elsewhere:5672/%2F"}}}
            await second.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", change)
            await move(30)
            moved = deployments(second)["queue-5-worker"]
            assert moved["spec"]["template"] != before["queue-5-worker"]["spec"]["template"]
            assert image_of(moved) == OLD

            change = {"spec": {"upgrades": {"atOnce": 4}}}
            await second.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", change)
            await move(120)
            assert images(second) == {NEW: 2 * QUEUES}

    run(scene())


def test_an_image_of_ones_own_stays_and_one_given_up_waits_for_room() -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, 2)
            await first.change({"image": "postroad:own"}, "queue-0")
            await move(10)
        async with upgraded(first) as second:
            await move(90)
            assert images(second) == {"postroad:own": 1, NEW: QUEUES - 1}

            change = {"spec": {"upgrades": {"atOnce": 0}}}
            await second.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", change)
            await second.change({"image": None}, "queue-0")
            await move(30)
            assert images(second)["postroad:own"] == 1

    run(scene())


def test_templates_of_a_newer_operator_are_paced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def newer(*of: Any, **by: Any) -> dict[str, Any]:
        template = pod_template(*of, **by)
        template["spec"]["priorityClassName"] = "of-the-newer-release"
        return template

    def rolled(operator: RunningController) -> int:
        specs = (each["spec"]["template"]["spec"] for each in deployments(operator).values())
        return sum("priorityClassName" in each for each in specs)

    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, 0, image=OLD)
        monkeypatch.setattr(manifests, "pod_template", newer)
        async with upgraded(first) as second:
            await move(60)
            assert rolled(second) == 0
            await second.change({"workers": {"replicas": 5}}, "queue-2")
            await move(400)
            assert deployments(second)["queue-2-worker"]["spec"]["replicas"] == 5
            assert rolled(second) == 0, "another number replaces no pods"
            assert second.events("Repaired") == []

            change = {"spec": {"upgrades": {"atOnce": 6}}}
            await second.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", change)
            await move(60)
            assert rolled(second) == QUEUES
            assert images(second) == {OLD: QUEUES}

    run(scene())


def test_a_newer_operator_with_the_same_pods_writes_nothing() -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, 3, image=OLD)
            await move(60)
        before = copy.deepcopy(deployments(first))
        async with upgraded(first) as second:
            await move(A_FULL_RECONCILE)

            assert deployments(second) == before

    run(scene())


DEADLINE = 600
SHORT = ("queue-0-worker", "queue-1-worker")


@pytest.mark.parametrize("restarted", [False, True])
def test_queues_whose_pods_cannot_be_made_hold_up_no_others_and_are_named(restarted: bool) -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, len(SHORT))
        async with running_controller(beside=first, image=NEW, short=SHORT) as second:
            await move(DEADLINE // 2)
            assert images(second) == {OLD: QUEUES - 2, NEW: 2}
            if not restarted:
                await check(second)
        if restarted:
            async with running_controller(beside=second, image=NEW, short=SHORT) as third:
                await check(third)

    async def check(operator: RunningController) -> None:
        await move(DEADLINE + 120)
        assert images(operator) == {NEW: QUEUES}
        condition = up_to_date(operator)
        assert (condition["status"], condition["reason"]) == ("False", "UpgradeBlocked")
        for each in ("queue-0", "queue-1"):
            assert f"{NAMESPACE}/{each} ({EXCEEDED})" in condition["message"]
        assert operator.condition("Ready", QUEUE_CLUSTER, "main")["status"] == "True"

    run(scene())


def test_queues_that_get_their_room_late_are_up_to_date_then() -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, 2)
        async with running_controller(beside=first, image=NEW, short=SHORT) as second:
            await move(2 * DEADLINE)
        async with upgraded(second) as third:
            await move(120)

            assert images(third) == {NEW: QUEUES}
            assert up_to_date(third)["status"] == "True"

    run(scene())


def test_an_image_whose_pods_do_not_get_ready_stops_for_as_long_as_it_takes() -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, 2)
        async with upgraded(first, broken=True) as second:
            await move(5 * DEADLINE)

            assert images(second) == {OLD: QUEUES - 2, NEW: 2}
            condition = up_to_date(second)
            assert condition["reason"] == "UpgradeStopped"
            assert "new pods do not get ready: mail/queue-0, mail/queue-1" in condition["message"]
        async with running_controller(beside=second, image="postroad:3", broken={NEW}) as third:
            await move(120)
            assert images(third) == {"postroad:3": QUEUES}, "the next release mends them"

    run(scene())


@pytest.mark.parametrize("at_once", [1, 2])
def test_releases_that_do_not_get_ready_stop_at_the_same_queues(at_once: int) -> None:
    """Also where queues that were paused wait before them."""

    async def scene() -> None:
        async with running_controller(image=OLD) as before:
            await declare(before, at_once)
            await before.change({"paused": True}, "queue-0")
            await before.change({"paused": True}, "queue-1")
            await move(10)
        broken = set[str]()
        for release in range(2, 5):
            image = f"postroad:{release}"
            broken.add(image)
            async with running_controller(beside=before, image=image, broken=broken) as before:
                await before.change({"paused": False}, f"queue-{4 - release}")
                await move(A_FULL_RECONCILE)
                assert images(before) == {OLD: QUEUES - at_once, image: at_once}
        async with running_controller(beside=before, image="postroad:5", broken=broken) as last:
            await move(120)
            assert images(last) == {"postroad:5": QUEUES}
            assert up_to_date(last)["status"] == "True"

    run(scene())


def test_pods_that_do_not_get_ready_are_named_and_counted_while_upgrades_are_held() -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, 1)
        async with upgraded(first, broken=True) as second:
            await move(60)
            change: dict[str, Any] = {"spec": {"upgrades": {"atOnce": 0}}}
            await second.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", change)
        broken = {NEW, "postroad:3"}
        async with running_controller(beside=second, image="postroad:3", broken=broken) as third:
            await third.change({"workers": {"replicas": 5}}, "queue-0")
            await move(DEADLINE + 120)
            assert deployments(third)["queue-0-worker"]["spec"]["replicas"] == 5
            assert images(third) == {OLD: QUEUES - 1, NEW: 1}
            condition = up_to_date(third)
            assert condition["reason"] == "UpgradesHeld"
            assert condition["message"].endswith("new pods do not get ready: mail/queue-0")
            change = {"spec": {"upgrades": {"atOnce": 1}}}
            await third.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", change)
            await move(120)
            assert images(third) == {OLD: QUEUES - 1, "postroad:3": 1}

    run(scene())


def test_a_shortage_that_a_former_release_met_blocks_the_next_for_no_longer() -> None:
    """Also of more queues than there are places."""
    short = [f"queue-{each}-worker" for each in range(QUEUES - 1)]

    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, QUEUES)
        async with running_controller(beside=first, image=NEW, short=short) as second:
            await move(60)
            change = {"spec": {"upgrades": {"atOnce": 1}}}
            await second.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", change)
        async with running_controller(beside=second, image="postroad:3", short=short) as third:
            await move(2 * DEADLINE + 120)
            assert image_of(deployments(third)[f"queue-{QUEUES - 1}-worker"]) == "postroad:3"

    run(scene())


@pytest.mark.parametrize("scheduled", ["True", "False"])
def test_pods_without_a_node_are_a_shortage_and_those_with_one_are_not(scheduled: str) -> None:
    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, 1)
            tags = {"app.kubernetes.io/name": "postroad", INSTANCE: "queue-0"}
            metadata = {"name": "p", "namespace": NAMESPACE, "labels": tags}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            await first.user.create(POD, pod)
            states = [("Ready", "False"), ("PodScheduled", scheduled)]
            message = {"message": "0/3 nodes are available"}
            conditions = [{"type": each, "status": status} | message for each, status in states]
            place = ObjectPlace("pods", NAMESPACE, "p")
            first.kubernetes.objects[place]["status"] = {"conditions": conditions}
        async with upgraded(first, broken=True) as second:
            await move(DEADLINE + 120)
            message = up_to_date(second)["message"]
            held = "queue-0 (pod p: 0/3 nodes are available)" in message
            assert held is (scheduled == "False"), message
            assert images(second)[NEW] == (2 if held else 1)

    run(scene())


def test_pods_that_a_user_changed_and_that_do_not_get_ready_take_no_place() -> None:
    async def scene() -> None:
        async with running_controller(image=OLD, broken={"postroad:own"}) as first:
            await declare(first, 2)
            for each in ("queue-0", "queue-1"):
                await first.change({"image": "postroad:own"}, each)
            await move(20)
        async with running_controller(beside=first, image=NEW, broken={"postroad:own"}) as second:
            await move(60)
            assert images(second) == {"postroad:own": 2, NEW: QUEUES - 2}
            assert up_to_date(second)["status"] == "True"

    run(scene())


def test_a_place_whose_deployment_cannot_be_changed_lapses() -> None:
    """As while a policy's webhook answers nothing."""

    async def scene() -> None:
        async with running_controller(image=OLD) as first:
            await declare(first, 2)

        async def refuse(step: Step) -> None:
            if step.operation in [f"patch deployments {NAMESPACE}/{each}" for each in SHORT]:
                raise KubernetesUnavailable("failed calling webhook")

        async with upgraded(first) as second:
            second.api.faults.before = refuse
            await move(DEADLINE + 120)
            assert images(second) == {NEW: QUEUES - 2, OLD: 2}

            second.api.faults.before = None
            await move(300)
            assert images(second) == {NEW: QUEUES}
            assert up_to_date(second)["status"] == "True"

    run(scene())


@pytest.mark.parametrize(
    ("status", "rolls"),
    [
        ({}, True),
        ({"observedGeneration": 1, "updatedReplicas": 2, "replicas": 2}, True),
        ({"observedGeneration": 2, "updatedReplicas": 1, "replicas": 2}, True),
        ({"observedGeneration": 2, "updatedReplicas": 2, "replicas": 3}, True),
        ({"observedGeneration": 2, "updatedReplicas": 2, "replicas": 2}, False),
        ({"observedGeneration": 2, "updatedReplicas": 1, "replicas": 1}, False),
    ],
    ids=[
        *("new", "not seen", "too few new pods", "an old pod", "replaced, ready or not"),
        "scaled up without room",
    ],
)
def test_a_deployment_rolls_until_only_new_pods_are_there(
    status: dict[str, int], rolls: bool
) -> None:
    found = {"metadata": {"generation": 2}, "spec": {"replicas": 2}, "status": status}

    assert is_rolling(found) is rolls
