"""Of two operators that watch different namespaces, one keeps a QueueCluster that both see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad.controller.cluster.clusters import (
    WATCHED_NAMESPACES,
    is_assigned_elsewhere,
)
from postroad.controller.kubernetes.api import MAIL_QUEUE, QUEUE_CLUSTER
from postroad.errors import KubernetesRefused
from support import resources
from support.manual_loop import move, run
from support.memory.fault_injection import Fault, Step
from support.running_controller import NAMESPACE, RunningController, running_controller

TEAM = "team"
MINUTE = 60


async def declare(operator: RunningController) -> None:
    """Create the QueueCluster `main` in `mail`, with a MailQueue there, and one in `team`, whose
    slices need larger windows of the tables."""
    cluster = resources.queue_cluster(NAMESPACE, allowedNamespaces={"from": "All"})
    reference = {"name": "main", "namespace": NAMESPACE}
    for each in (*resources.secrets(NAMESPACE), *resources.secrets(TEAM), cluster):
        await operator.create(each)
    await operator.create(resources.mail_queue(NAMESPACE))
    view = resources.view("80h", 1)
    await operator.create(
        resources.mail_queue(TEAM, "long", clusterRef=reference, deletionPolicy="Delete", view=view)
    )


@asynccontextmanager
async def two() -> AsyncIterator[tuple[RunningController, RunningController]]:
    """Yield an operator of both namespaces, and one of `mail` alone, in one Kubernetes cluster."""
    async with running_controller(namespaces=(NAMESPACE, TEAM)) as wide:
        await declare(wide)
        await move(MINUTE)
        async with running_controller(namespaces=(NAMESPACE,), beside=wide) as narrow:
            await move(2 * MINUTE)
            yield wide, narrow


def test_what_the_first_does_not_see_changes_nothing() -> None:
    """Tables over the MailQueues of `mail` alone would have other options each minute."""

    async def scene() -> None:
        async with two() as (wide, narrow):
            options = wide.world.schema.options
            await move(5 * MINUTE)

            assert wide.found(QUEUE_CLUSTER, "main")["status"][WATCHED_NAMESPACES] == [
                NAMESPACE,
                TEAM,
            ]
            assert (
                wide.found(QUEUE_CLUSTER, "main")["status"]["tables"]["compactionWindow"] == "96h"
            )
            assert wide.world.schema.options == options
            assert not wide.events("Repaired")
            written = [each for each in narrow.calls if each.split()[0] not in ("get", "list")]
            assert {each[: len("create events")] for each in written} == {"create events"}
            (event,) = wide.events("ResourceConflict")
            assert event["regarding"]["kind"] == "QueueCluster"
            assert wide.condition("Ready")["status"] == "True"

    run(scene())


def test_a_queuecluster_in_use_is_not_let_go_by_an_operator_that_sees_no_use() -> None:
    async def scene() -> None:
        async with two() as (wide, _):
            await wide.delete(MAIL_QUEUE, "outgoing")
            await wide.delete(QUEUE_CLUSTER, "main")
            await move(2 * MINUTE)

            assert wide.found(QUEUE_CLUSTER, "main")["metadata"]["finalizers"]
            assert wide.condition("Ready", QUEUE_CLUSTER, "main")["reason"] == "InUse"

    run(scene())


def test_the_second_operator_reports_it_at_what_it_alone_sees() -> None:
    """At other MailQueues the two would write in turns."""

    async def scene() -> None:
        async with running_controller(namespaces=(NAMESPACE,)) as first:
            await declare(first)
            await move(MINUTE)
            async with running_controller(namespaces=(NAMESPACE, TEAM), beside=first) as second:
                await move(5)  # it watches more, and takes over
            kept = first.found(QUEUE_CLUSTER, "main")["status"][WATCHED_NAMESPACES]
            assert kept == [NAMESPACE, TEAM]
        async with running_controller(namespaces=(NAMESPACE,)) as first:
            await declare(first)
            await move(MINUTE)
            async with running_controller(namespaces=(TEAM, "infra"), beside=first) as second:
                await move(2 * MINUTE)
                queue = second.at(MAIL_QUEUE.plural, TEAM, "long")
                assert queue is not None
                (ready, *_) = queue["status"]["conditions"]
                assert ready["reason"] == "ResourceConflict"
                assert "watches namespaces mail, and this one" in ready["message"]
                assert first.condition("Ready")["status"] == "True"

    run(scene())


def test_a_queuecluster_that_may_not_be_read_is_a_condition() -> None:
    """Of an operator whose Role ends at its namespace."""

    def refuse(step: Step) -> Fault | None:
        if step.operation == "get queueclusters mail/main":
            raise KubernetesRefused("forbidden")
        return None

    async def scene() -> None:
        async with running_controller(namespaces=(TEAM,)) as operator:
            operator.api.faults.plan = refuse
            reference = {"name": "main", "namespace": NAMESPACE}
            await operator.create(resources.mail_queue(TEAM, "long", clusterRef=reference))
            await move(MINUTE)

            queue = operator.at(MAIL_QUEUE.plural, TEAM, "long")
            assert queue is not None
            (ready, *_) = queue["status"]["conditions"]
            assert ready["reason"] == "KubernetesRefused"

    run(scene())


def test_an_operator_of_more_namespaces_takes_over() -> None:
    """As where a second `--namespace` was added, or the last one removed."""
    for recorded, own, elsewhere in (
        (["mail"], ("mail",), False),
        (["mail"], ("mail", "team"), False),
        (["mail", "team"], ("mail",), True),
        (["*"], ("mail",), True),
        (["mail"], (), False),
        (["*"], (), False),
        (None, ("mail",), False),
    ):
        found = {"status": {WATCHED_NAMESPACES: recorded} if recorded else {}}
        assert is_assigned_elsewhere(found, own) is elsewhere, (recorded, own)
