"""Children without an owner are taken over; those of others are named, all in one message."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from postroad.controller.kubernetes.api import (
    CHILDREN,
    CONSOLE,
    DEPLOYMENT,
    INSTANCE,
    MAIL_QUEUE,
    MANAGED_BY,
    QUEUE_CLUSTER,
    SECRET,
    TASK,
)
from postroad.controller.pods import manifests
from postroad.controller.pods.pods import pod_template
from postroad.ports.kubernetes import Object
from support.manual_loop import move, run
from support.memory.kubernetes.world import ObjectPlace
from support.resources import intake, mail_queue, queue_cluster, secret, secrets, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

KINDS = {each.plural: each for each in (*CHILDREN, SECRET, QUEUE_CLUSTER, MAIL_QUEUE)}
RESTORED = ("name", "namespace", "labels", "annotations", "finalizers")
"""Metadata that a tool for backups brings back: no uids, no owners."""

SPEC: dict[str, Any] = {
    "networkPolicy": {"enabled": True},
    "workers": workers(2),
    "intake": intake(),
    "pipeline": {
        "archive": {"schedule": "7 * * * *"},
        "addresses": {"keep": "Plain"},
        "image": "postroad-pipeline:2",
        "executors": {"instances": 2},
    },
}
CHILD_KINDS = {each.name for each in CHILDREN}
LOGIN = ObjectPlace("secrets", NAMESPACE, "outgoing-rabbitmq")
DEPLOYMENTS = ("outgoing-worker", "outgoing-intake")


async def declare(operator: RunningController) -> None:
    """Create a MailQueue that has a child of every kind, and a user at RabbitMQ of its own. Its
    intake is a Deployment, not the StatefulSet of one with an outbox."""
    cluster = queue_cluster(NAMESPACE)
    users = {"managementURL": "http://rabbitmq:15672", "users": {}}
    cluster["spec"]["rabbitmq"] = {**cluster["spec"]["rabbitmq"], **users}
    for each in (*secrets(NAMESPACE), cluster, mail_queue(NAMESPACE, **SPEC)):
        await operator.create(each)
    await move(30)
    assert operator.condition("Ready")["status"] == "True"
    found = {place.plural for place, _ in children(operator)}
    assert {each.plural for each in CHILDREN} <= found | {"statefulsets"}


def children(operator: RunningController) -> list[tuple[ObjectPlace, Object]]:
    """Return what belongs to a MailQueue by its labels."""
    return [
        (place, each)
        for place, each in operator.kubernetes.objects.items()
        if INSTANCE in (each["metadata"].get("labels") or {}) and place.plural in KINDS
    ]


def owners(operator: RunningController) -> set[str]:
    return {
        owner["uid"]
        for _, each in children(operator)
        for owner in each["metadata"].get("ownerReferences") or [{"uid": ""}]
    }


def backup(operator: RunningController) -> list[tuple[str, Object]]:
    saved = []
    for place, each in operator.kubernetes.objects.items():
        if place.plural in KINDS and place.namespace == NAMESPACE:
            copy = deepcopy({name: value for name, value in each.items() if name != "status"})
            metadata = copy["metadata"]
            copy["metadata"] = {name: metadata[name] for name in RESTORED if name in metadata}
            saved.append((place.plural, copy))
    return sorted(saved, key=lambda each: [*KINDS].index(each[0]))


def lose(operator: RunningController) -> None:
    for place in list(operator.kubernetes.objects):
        if place.namespace == NAMESPACE and place in operator.kubernetes.objects:
            operator.kubernetes._remove(place)


def test_a_restored_namespace_is_ready_by_itself_with_the_pods_that_were_restored() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            saved = backup(operator)
            lose(operator)
            await move(60)
            for plural, each in saved:
                await operator.user.create(KINDS[plural], each)
            await move(10)
            before = {name: operator.found(DEPLOYMENT, name) for name in DEPLOYMENTS}
            login = operator.kubernetes.objects[LOGIN]["data"]
            await move(120)

            assert operator.condition("Ready")["status"] == "True"
            assert operator.condition("Ready", QUEUE_CLUSTER, "main")["status"] == "True"
            assert owners(operator) == {operator.found()["metadata"]["uid"]}
            assert operator.kubernetes.objects[LOGIN]["data"] == login
            for name, each in before.items():
                assert operator.found(DEPLOYMENT, name)["spec"] == each["spec"]

    run(scene())


@pytest.mark.parametrize("held", [True, False])
def test_restored_children_that_stay_as_they_are_go_with_their_queue(
    held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a queue that waits for an upgrade, and of one that lacks a Secret."""

    def newer(*of: Any, **by: Any) -> dict[str, Any]:
        template = pod_template(*of, **by)
        template["spec"]["priorityClassName"] = "of-the-newer-release"
        return template

    async def scene() -> None:
        async with running_controller() as first:
            await declare(first)
            await first.create(secret(NAMESPACE, "relay", {"username": "u", "password": "p"}))
            relay = {"host": "sink", "port": 2525, "tls": {"mode": "Required"}}
            relay["login"] = {"secretRef": {"name": "relay"}}
            outbox = intake(outbox={"size": "1Gi"})
            worker = workers() | {"handler": {"relay": relay}}
            await first.change({"workers": worker, "intake": outbox})
            pace = {"spec": {"upgrades": {"atOnce": 0 if held else 1}}}
            await first.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", pace)
            await move(30)
            assert first.condition("Ready")["status"] == "True"
            saved = [
                each for each in backup(first) if held or each[1]["metadata"]["name"] != "relay"
            ]
            lose(first)
            await move(60)
        monkeypatch.setattr(manifests, "pod_template", newer)
        async with running_controller(beside=first) as second:
            for plural, each in saved:
                await second.user.create(KINDS[plural], each)
            await move(120)

            assert second.condition("WorkersReady")["status"] == str(held)
            assert owners(second) == {second.found()["metadata"]["uid"]}
            names = {"outgoing-worker", "outgoing-intake"} if held else {"outgoing-worker"}
            for plural, each in saved:
                name = each["metadata"]["name"]
                if plural in ("deployments", "statefulsets") and name in names:
                    assert second.found(KINDS[plural], name)["spec"] == each["spec"]

    run(scene())


def test_children_that_their_resource_left_behind_are_taken_over_by_the_next() -> None:
    """As after `kubectl delete --cascade=orphan`."""

    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            for place, each in children(operator):
                left = deepcopy(each)
                del left["metadata"]["ownerReferences"]
                operator.kubernetes._write(place, left)
            operator.kubernetes._remove(ObjectPlace("mailqueues", NAMESPACE, "outgoing"))
            await move(5)
            await operator.create(mail_queue(NAMESPACE, **SPEC))
            await move(60)

            assert operator.condition("Ready")["status"] == "True"
            assert owners(operator) == {operator.found()["metadata"]["uid"]}

    run(scene())


OTHER = {"apiVersion": "apps/v1", "kind": "Widget", "name": "w", "uid": "w", "controller": True}


@pytest.mark.parametrize(
    "theirs",
    [
        {"ownerReferences": [OTHER]},
        {"labels": {MANAGED_BY: "Helm"}},
        {"labels": {INSTANCE: "incoming"}},
        {"annotations": {}},
    ],
    ids=["of another controller", "managed by others", "of another queue", "never applied"],
)
def test_objects_of_others_are_named_in_one_message_and_stay_as_they_are(theirs: Any) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            saved = [each for each in backup(operator) if each[1]["kind"] in CHILD_KINDS]
            lose(operator)
            for plural, each in saved:
                metadata = {**each["metadata"], **theirs}
                metadata["labels"] = each["metadata"]["labels"] | theirs.get("labels", {})
                await operator.user.create(KINDS[plural], {**each, "metadata": metadata})
            names = [f"{each['kind']} {each['metadata']['name']}" for _, each in saved]
            before = {place: each["spec"] for place, each in children(operator) if "spec" in each}
            for each in (*secrets(NAMESPACE), queue_cluster(NAMESPACE)):
                await operator.create(each)
            await operator.create(mail_queue(NAMESPACE, **SPEC))
            await move(60)

            ready = operator.condition("Ready")
            assert (ready["status"], ready["reason"]) == ("False", "NameTaken")
            assert operator.condition("Stalled")["status"] == "True"
            assert [each for each in names if each not in ready["message"]] == []
            now = {place: each["spec"] for place, each in children(operator) if "spec" in each}
            assert now == before

    run(scene())


def test_children_that_the_api_server_still_removes_are_waited_for() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            saved = [each for each in backup(operator) if each[1]["kind"] in CHILD_KINDS]
            (owner,) = operator.found(DEPLOYMENT, "outgoing-worker")["metadata"]["ownerReferences"]
            await operator.delete(MAIL_QUEUE, "outgoing")
            for plural, each in saved:
                metadata = {**each["metadata"], "ownerReferences": [owner]}
                await operator.user.create(KINDS[plural], {**each, "metadata": metadata})
            await operator.create(mail_queue(NAMESPACE, **SPEC))
            await move(20)
            assert operator.condition("Reconciling")["reason"] == "NameTaken"

            for place, _ in children(operator):
                if place.plural != "secrets":
                    operator.kubernetes._remove(place)
            await move(90)
            assert operator.condition("Ready")["status"] == "True"

    run(scene())


@pytest.mark.parametrize("label", [TASK, CONSOLE])
def test_children_with_the_label_of_what_another_resource_has_stay_known(label: str) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            change = {"metadata": {"labels": {label: "x"}}}
            for place, _ in children(operator):
                kind = KINDS[place.plural]
                await operator.user.patch(kind, place.namespace, place.name, change)
            await move(600)
            assert operator.events("Repaired") == []

            scaled = {"spec": {"replicas": 7}}
            await operator.user.patch(DEPLOYMENT, NAMESPACE, "outgoing-worker", scaled)
            await move(5)
            worker = operator.at("deployments", NAMESPACE, "outgoing-worker")
            assert worker is not None
            assert worker["spec"]["replicas"] == 2
            await operator.change({"workers": None, "intake": None, "pipeline": None})
            await move(30)
            left = {place.plural for place, _ in children(operator)}
            assert left.isdisjoint({"deployments", "services", "cronjobs"})

    run(scene())
