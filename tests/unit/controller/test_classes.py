"""Operators of two classes over one API server leave each other's resources alone."""

from __future__ import annotations

from postroad.adapters.memory.servers import MemoryWorld
from postroad.controller.kubernetes.api import DEPLOYMENT, FINALIZER, MAIL_QUEUE, QUEUE_CLUSTER
from support import resources
from support.manual_loop import move, run
from support.running_controller import RunningController, running_controller

NAMESPACE = "mail"
WRITES = ("create", "patch", "update", "delete")


def writes(operator: RunningController) -> list[str]:
    return [each for each in operator.calls if each.startswith(WRITES)]


async def declare(operator: RunningController, name: str, **spec: object) -> None:
    """Create a QueueCluster, and a MailQueue of the same name that refers to it."""
    for each in resources.secrets(NAMESPACE):
        if operator.at("secrets", NAMESPACE, each["metadata"]["name"]) is None:
            await operator.create(each)
    cluster = resources.queue_cluster(NAMESPACE, name, **spec)
    cluster["spec"]["cassandra"]["keyspace"] = name
    await operator.create(cluster)
    queue = resources.mail_queue(
        NAMESPACE, name, workers=resources.workers(), clusterRef={"name": name}
    )
    await operator.create(queue)


def image_of(operator: RunningController, queue: str) -> str:
    found = operator.found(DEPLOYMENT, f"{queue}-worker")
    image: str = found["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


def test_each_operator_reconciles_its_class_alone_and_both_come_to_rest() -> None:
    async def check() -> None:
        async with (
            running_controller() as ours,
            running_controller(beside=ours, operator_class="canary") as canary,
        ):
            canary.keyspaces["tried"] = MemoryWorld(canary.clock)
            await declare(ours, "plain")
            await declare(ours, "tried", operatorClass="canary")
            await move(60)
            assert image_of(ours, "plain") == "postroad:default"
            assert image_of(ours, "tried") == "postroad:canary"
            for kind in (QUEUE_CLUSTER, MAIL_QUEUE):
                for name in ("plain", "tried"):
                    assert ours.condition("BrokerReady", kind, name)["status"] == "True"

            settled = len(writes(ours)), len(writes(canary))
            await move(900)

            assert (len(writes(ours)), len(writes(canary))) == settled
            assert not any("tried" in each for each in writes(ours))
            assert not any("plain" in each for each in writes(canary))

    run(check())


def test_an_operator_of_another_class_has_no_effect_at_all() -> None:
    async def check() -> None:
        async with running_controller(operator_class="canary") as operator:
            await declare(operator, "plain", operatorClass="other")
            await operator.change({"deletionPolicy": "Delete"}, "plain")
            await move(120)
            await operator.delete(MAIL_QUEUE, "plain")
            await operator.delete(QUEUE_CLUSTER, "plain")
            await move(120)

            assert writes(operator) == []
            assert operator.connected == []

    run(check())


def test_a_queue_without_a_cluster_is_reported_by_the_operator_that_had_it() -> None:
    async def check() -> None:
        async with (
            running_controller() as ours,
            running_controller(beside=ours, operator_class="canary") as canary,
        ):
            await declare(ours, "tried", operatorClass="canary")
            await move(60)
            await ours.delete(QUEUE_CLUSTER, "tried")
            await ours.create(resources.mail_queue(NAMESPACE, "lost"))
            await move(400)

            for name in ("tried", "lost"):
                assert ours.condition("Ready", name=name)["reason"] == "ClusterNotFound"
            assert not any("tried" in each for each in writes(ours))
            assert not any("lost" in each for each in writes(canary))

    run(check())


def test_a_deletion_is_carried_out_by_its_class() -> None:
    async def check() -> None:
        async with (
            running_controller() as ours,
            running_controller(beside=ours, operator_class="canary") as canary,
        ):
            await declare(ours, "tried", operatorClass="canary")
            await ours.change({"deletionPolicy": "Delete", "workers": None}, "tried")
            await move(60)
            assert FINALIZER in ours.found(MAIL_QUEUE, "tried")["metadata"]["finalizers"]

            await ours.delete(MAIL_QUEUE, "tried")
            await move(60)

            assert ours.at(MAIL_QUEUE.plural, NAMESPACE, "tried") is None
            assert writes(ours) == []
            assert any("events" in each for each in writes(canary))

    run(check())
