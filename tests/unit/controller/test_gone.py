"""A resource that is gone leaves nothing behind in the operator."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from postroad.controller.kubernetes.api import (
    FINALIZER,
    MAIL_QUEUE,
    QUEUE_CLUSTER,
    Key,
    has_finalizer,
)
from postroad.controller.reads import PATIENCE
from support.manual_loop import move, run
from support.memory.kubernetes.world import ObjectPlace
from support.resources import mail_queue, queue_cluster, secrets, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

MINUTES = 20 * 60


def test_a_retained_queue_has_no_finalizer_and_its_end_is_an_event() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            assert not has_finalizer(operator.found())
            assert not has_finalizer(operator.found(QUEUE_CLUSTER, "main"))

            await operator.delete(MAIL_QUEUE, "outgoing")
            assert operator.at("mailqueues", NAMESPACE, "outgoing") is None
            await move(2)

            (event,) = operator.events("Retained")
            assert "mail.outgoing" in event["note"]
            assert operator.controller._engines._known == {}

    run(scene())


def test_the_finalizer_follows_the_deletion_policy_and_the_pause() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            for spec, expected in (
                ({"deletionPolicy": "Delete"}, True),
                ({"paused": True}, False),
                ({"paused": False}, True),
                ({"deletionPolicy": "Retain"}, False),
            ):
                await operator.change(spec)
                await move(3)
                assert has_finalizer(operator.found()) is expected, spec
                assert has_finalizer(operator.found(QUEUE_CLUSTER, "main")) is expected, spec

    run(scene())


PLACES = ("MailQueue", NAMESPACE, "outgoing"), ("QueueCluster", NAMESPACE, "main")


def test_both_finalizers_are_there_before_anything_is_made() -> None:
    """The reconcile of the MailQueue sets both."""

    async def scene() -> None:
        operator = RunningController()
        for each in (*secrets(NAMESPACE), queue_cluster(NAMESPACE)):
            await operator.create(each)
        await operator.create(mail_queue(NAMESPACE, deletionPolicy="Delete"))
        operator.fill_indexes()
        queue, cluster = (Key(*each) for each in PLACES)
        for key in (queue, cluster, queue):
            await operator.controller.reconcile(key)
        await operator.controller.close()

        patched = [each.split()[1] for each in operator.calls if each.startswith("patch")]
        assert patched[:3] == ["mailqueues", "queueclusters", "configmaps"]

    run(scene())


def test_a_queue_that_its_cluster_does_not_allow_holds_neither_itself_nor_the_cluster() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            reference = {"name": "main", "namespace": NAMESPACE}
            foreign = mail_queue("other", deletionPolicy="Delete", clusterRef=reference)
            await operator.create(foreign)
            await move(5)
            found = operator.at("mailqueues", "other", "outgoing")
            assert found
            assert not has_finalizer(found)

            await operator.delete(QUEUE_CLUSTER, "main")
            assert operator.at("queueclusters", NAMESPACE, "main") is None
            await move(PATIENCE.total_seconds() + 90)
            assert [each.closed for each in operator.connected] == [True]

    run(scene())


def test_a_finalizer_taken_off_by_hand_leaves_no_engine() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(deletionPolicy="Delete")
            operator.faults.plan = lambda step: None
            await operator.delete(MAIL_QUEUE, "outgoing")
            found = operator.found()
            assert found["metadata"]["finalizers"] == [FINALIZER]
            change = {"metadata": {"finalizers": None}}
            await operator.user.patch(MAIL_QUEUE, NAMESPACE, "outgoing", change)
            await move(2)

            assert operator.controller._engines._known == {}
            assert not operator.events("Retained")

    run(scene())


def test_a_queue_of_the_same_name_gets_an_engine_of_its_own() -> None:
    """The operator sees only the second one: the watch was broken."""

    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            (before,) = operator.controller._engines._known
            operator.kubernetes.objects.pop(ObjectPlace("mailqueues", NAMESPACE, "outgoing"))
            await operator.create(mail_queue(NAMESPACE))
            await move(5)

            (after,) = operator.controller._engines._known
            assert after != before

    run(scene())


def kept_in(of: object, seen: set[int]) -> Iterator[str]:
    """Yield, for each element of each container that is reached through postroad's objects but for
    the servers in memory, where it is kept."""
    if id(of) in seen or type(of).__module__.startswith("postroad.adapters"):
        return
    seen.add(id(of))
    for name, value in attributes(of).items():
        if isinstance(value, (Mapping, set, list, deque)):
            yield from (f"{type(of).__name__}.{name}" for _ in value)
            inner = value.values() if isinstance(value, Mapping) else value
            for each in (each for each in inner if is_ours(each)):
                yield from kept_in(each, seen)
        elif is_ours(value):
            yield from kept_in(value, seen)


def is_ours(value: object) -> bool:
    return type(value).__module__.startswith("postroad.")


def attributes(of: object) -> dict[str, Any]:
    slots = [each for kind in type(of).__mro__ for each in getattr(kind, "__slots__", ())]
    return {each: getattr(of, each) for each in slots if hasattr(of, each)} | dict(
        getattr(of, "__dict__", {})
    )


async def come_and_go(operator: RunningController, name: str) -> None:
    """Create a QueueCluster with MailQueues, and delete them."""
    cluster = queue_cluster(NAMESPACE, name)
    cluster["spec"]["cassandra"] |= {"keyspace": name.replace("-", "_"), "contactPoints": [name]}
    cluster["spec"]["s3"]["bucketPrefix"] = "other-"
    operator.keyspaces[name.replace("-", "_")] = operator.world.other_keyspace()
    await operator.create(cluster)
    await move(5)
    for each in ("outgoing", "incoming"):
        reference = {"name": name}
        wanted = mail_queue(NAMESPACE, f"{name}-{each}", clusterRef=reference, workers=workers())
        wanted["spec"]["deletionPolicy"] = "Delete"
        await operator.create(wanted)
    await move(30)
    for each in ("outgoing", "incoming"):
        assert operator.condition("Ready", name=f"{name}-{each}")["status"] == "True"
        await operator.delete(MAIL_QUEUE, f"{name}-{each}")
    await move(30)
    await operator.delete(QUEUE_CLUSTER, name)
    await move(5)


def test_what_the_operator_keeps_does_not_grow_with_what_came_and_went() -> None:
    """Ten QueueClusters of other keyspaces, with two MailQueues each."""

    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            await move(MINUTES)
            before = Counter(kept_in(operator.controller, set()))
            for number in range(10):
                await come_and_go(operator, f"other-{number}")
            await move(MINUTES)

            grown = Counter(kept_in(operator.controller, set())) - before
            assert {where: count for where, count in grown.items() if count >= 5} == {}

    run(scene())
