"""MailQueues follow within seconds when a server of their cluster is lost or comes back.

Intervals are those of production.
"""

from __future__ import annotations

import pytest

from postroad.controller.kubernetes.api import QUEUE_CLUSTER
from support.manual_loop import move, run
from support.memory.fault_injection import away, no_fault
from support.resources import mail_queue, workers
from support.running_controller import NAMESPACE, running_controller

BOUND = 15


@pytest.mark.parametrize(
    ("server", "condition", "others"),
    [
        ("broker", "BrokerReady", ("ViewReady", "BlobsReady")),
        ("view", "ViewReady", ("BrokerReady", "BlobsReady")),
        ("blobs", "BlobsReady", ("BrokerReady", "ViewReady")),
    ],
)
def test_ready_follows_a_server_within_seconds(
    server: str, condition: str, others: tuple[str, str]
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())
            await move(100)

            operator.faults.plan = away(server)
            await move(BOUND)
            for kind, name in ((QUEUE_CLUSTER, "main"), (None, "outgoing")):
                place = (kind, name) if kind else ()
                assert operator.condition("Ready", *place)["status"] == "False", name
                assert operator.condition(condition, *place)["reason"].endswith("Unavailable")
                assert {operator.condition(each, *place)["status"] for each in others} == {"True"}
            assert operator.condition("WorkersReady")["status"] == "True"

            operator.faults.plan = no_fault
            await move(BOUND)
            assert operator.condition("Ready")["status"] == "True"
            assert operator.condition("Ready", QUEUE_CLUSTER, "main")["status"] == "True"

    run(scene())


def test_queues_of_a_lost_server_leave_it_alone_until_it_answers() -> None:
    """Their reconciles would block those of other clusters, each until its request times out."""

    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            for number in range(5):
                await operator.create(mail_queue(NAMESPACE, f"queue-{number}"))
            operator.faults.plan = away("view")
            await move(BOUND)
            before = len(operator.faults.steps)
            await move(300)

            asked = [each for each in operator.faults.steps[before:] if each.server == "view"]
            assert asked == []

    run(scene())
