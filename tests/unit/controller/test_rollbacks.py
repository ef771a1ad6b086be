"""An operator of the release before, over what a later one wrote, changes nothing of the queue that
it cannot read; and pods are replaced for no release whose history was not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from postroad.adapters.memory.servers import MemoryHistory
from postroad.controller.kubernetes.api import DEPLOYMENT, INSTANCE, MAIL_QUEUE, ROTATE
from postroad.errors import HistoryTooNew
from support.manual_loop import move, run
from support.memory.fault_injection import away
from support.memory.kubernetes.world import ObjectPlace
from support.resources import intake, mail_queue, queue_cluster, secrets, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

BEFORE, LATER = "postroad:1", "postroad:2"
A_FULL_RECONCILE = 400
WORKER, INTAKE = "outgoing-worker", "outgoing-intake"


def children(operator: RunningController) -> dict[ObjectPlace, Mapping[str, Any]]:
    return {
        place: {name: value for name, value in each.items() if name != "status"}
        for place, each in operator.kubernetes.objects.items()
        if INSTANCE in (each["metadata"].get("labels") or {})
    }


def images(operator: RunningController) -> set[str]:
    found = [operator.found(DEPLOYMENT, name) for name in (WORKER, INTAKE)]
    return {each["spec"]["template"]["spec"]["containers"][0]["image"] for each in found}


async def too_new(_: MemoryHistory) -> None:
    raise HistoryTooNew("event 2 of the configuration history cannot be read by this release")


def test_an_older_operator_leaves_a_queue_as_it_is_whose_history_it_cannot_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        async with running_controller(image=LATER) as later:
            await later.declare(workers=workers(), intake=intake())
        before = children(later)
        with monkeypatch.context() as patched:
            patched.setattr(MemoryHistory, "load", too_new)
            async with running_controller(beside=later, image=BEFORE) as older:
                await move(A_FULL_RECONCILE)

                assert children(older) == before
                for each in ("Ready", "ConfigurationAccepted"):
                    found = older.condition(each)
                    assert (found["status"], found["reason"]) == ("False", "HistoryTooNew")
                    assert "event 2" in found["message"]
                    assert "run the release that wrote it" in found["message"]
                assert older.condition("Stalled")["status"] == "True"
                for each in ("BrokerReady", "ViewReady", "BlobsReady"):
                    found = older.condition(each)
                    assert (found["status"], found["reason"]) == ("Unknown", "HistoryTooNew")
                assert older.condition("WorkersReady")["status"] == "Unknown"
                await older.change({"workers": {"concurrency": 7}})
                await move(A_FULL_RECONCILE)
                assert children(older) == before
        async with running_controller(beside=later, image=LATER) as again:
            await move(A_FULL_RECONCILE)
            assert again.condition("Ready")["status"] == "True"
            assert images(again) == {LATER}

    run(scene())


def test_an_older_operator_makes_nothing_anew_and_no_user_where_it_cannot_read_the_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pods, which it leaves, would lose the user that they have; and a loss would be mended without
    a word."""

    async def scene() -> None:
        async with running_controller(image=LATER) as later:
            cluster = queue_cluster(NAMESPACE)
            cluster["spec"]["rabbitmq"] |= {"managementURL": "http://rabbitmq:15672", "users": {}}
            for each in (*secrets(NAMESPACE), cluster, mail_queue(NAMESPACE, workers=workers())):
                await later.create(each)
            await move(30)
            assert later.condition("Ready")["status"] == "True"
        queues = later.world.queues("mail.outgoing")
        bucket, users = later.world.bucket("postroad-mail-outgoing"), dict(later.world.users)
        before = children(later)
        queues.declared = bucket.is_created = False
        with monkeypatch.context() as patched:
            patched.setattr(MemoryHistory, "load", too_new)
            async with running_controller(beside=later, image=BEFORE) as older:
                change = {"metadata": {"annotations": {ROTATE: "now"}}}
                await older.user.patch(MAIL_QUEUE, NAMESPACE, "outgoing", change)
                await move(A_FULL_RECONCILE)

                assert older.condition("Ready")["reason"] == "HistoryTooNew"
                assert [queues.declared, bucket.is_created] == [False, False]
                assert (children(older), older.world.users) == (before, users)
        async with running_controller(beside=later, image=LATER) as again:
            await move(A_FULL_RECONCILE)
            assert again.events("QueuesWereMissing")
            assert [queues.declared, bucket.is_created] == [True, True]

    run(scene())


def test_pods_are_replaced_for_another_release_once_the_history_was_read() -> None:
    async def scene() -> None:
        async with running_controller(image=LATER) as later:
            await later.declare(workers=workers(), intake=intake())
        async with running_controller(beside=later, image=BEFORE) as older:
            older.faults.plan = away("view")
            await move(A_FULL_RECONCILE)
            assert images(older) == {LATER}
            await older.change({"workers": {"replicas": 2}})
            await move(60)
            assert images(older) == {LATER}
            assert older.found(DEPLOYMENT, WORKER)["spec"]["replicas"] == 2

            older.faults.plan = away()
            await move(A_FULL_RECONCILE)
            assert images(older) == {BEFORE}
            assert older.condition("Ready")["status"] == "True"

    run(scene())
