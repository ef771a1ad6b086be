"""A paused QueueCluster: its servers are checked, and nothing of it is changed at them."""

from __future__ import annotations

from typing import Any

from postroad.controller.kubernetes.api import QUEUE_CLUSTER
from support.manual_loop import move, run
from support.memory.fault_injection import away
from support.running_controller import NAMESPACE, RunningController, running_controller


async def change(operator: RunningController, **spec: Any) -> None:
    """Change the spec of the QueueCluster as a user, and wait for some reconciles."""
    assert await operator.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", {"spec": spec})
    await move(30)


def condition(operator: RunningController, which: str) -> str:
    """Return the status of a condition and its reason."""
    found = operator.condition(which, QUEUE_CLUSTER, "main")
    return f"{found['status']} {found.get('reason')}"


def row_lifetime(operator: RunningController) -> str:
    lifetime: str = operator.found(QUEUE_CLUSTER, "main")["status"]["tables"]["rowLifetime"]
    return lifetime


def test_paused_cluster_keeps_its_tables_and_follows_its_spec_when_it_goes_on() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            await change(operator, paused=True)

            assert condition(operator, "Paused") == "True PausedByUser"
            assert condition(operator, "Ready") == "True AsDeclared"

            await change(operator, cassandra={"rowLifetime": "300h"})

            assert row_lifetime(operator) == "336h"
            assert condition(operator, "Ready") == "Unknown PausedByUser"
            assert condition(operator, "ViewReady").startswith("True")
            assert operator.condition("Ready")["status"] == "True"

            await change(operator, paused=False)

            assert row_lifetime(operator) == "300h"
            assert condition(operator, "Ready") == "True AsDeclared"
            assert condition(operator, "Paused") == "None None"

    run(scene())


def test_paused_cluster_still_tells_that_a_server_is_away() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare()
            await change(operator, paused=True)
            operator.faults.plan = away("broker")

            await move(120)

            assert condition(operator, "BrokerReady") == "False BrokerUnavailable"
            assert condition(operator, "Ready").startswith("False")

    run(scene())
