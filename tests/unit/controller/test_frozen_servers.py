"""Servers that hang, without an error, block the queues of no other QueueCluster.

Intervals are those of production.
"""

from __future__ import annotations

import asyncio

from postroad.adapters.memory.servers import MemoryWorld
from support.manual_loop import move, run
from support.memory.fault_injection import FaultInjector, Step
from support.resources import mail_queue, queue_cluster
from support.running_controller import NAMESPACE, RunningController, running_controller

ELSEWHERE = "amqp://elsewhere.example:5672/%2F"
QUEUES, FEW = 40, 4


async def hang(step: Step) -> None:
    if step.server == "view":
        await asyncio.Event().wait()


async def declare_both(operator: RunningController, queues: int) -> FaultInjector:
    """Declare a healthy cluster, and another one with many queues; return the other's faults."""
    faults = operator.faults_at[ELSEWHERE] = FaultInjector()
    operator.keyspaces["other"] = MemoryWorld(operator.clock)
    await operator.declare()
    other = queue_cluster(NAMESPACE, "other")
    other["spec"]["rabbitmq"]["url"] = ELSEWHERE
    other["spec"]["cassandra"]["keyspace"] = "other"
    await operator.create(other)
    for number in range(queues):
        await operator.create(mail_queue(NAMESPACE, f"q-{number}", clusterRef={"name": "other"}))
    await move(60)
    assert operator.condition("Ready", name=f"q-{queues - 1}")["status"] == "True"
    return faults


def test_a_new_queue_is_ready_while_another_clusters_cassandra_is_frozen() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            faults = await declare_both(operator, QUEUES)
            faults.before = hang
            for number in range(QUEUES):
                await operator.change({"deletionPolicy": "Delete"}, f"q-{number}")
            await move(2)

            await operator.create(mail_queue(NAMESPACE, "new"))
            await move(5)

            assert operator.condition("Ready", name="new")["status"] == "True"

    run(scene())


def test_a_frozen_server_has_one_reason() -> None:
    """Each change of the reason is an Event of each MailQueue."""

    async def scene() -> None:
        async with running_controller() as operator:
            faults = await declare_both(operator, FEW)
            faults.before = hang
            for number in range(FEW):
                await operator.change({"deletionPolicy": "Delete"}, f"q-{number}")
            await operator.create(mail_queue(NAMESPACE, "new", clusterRef={"name": "other"}))
            await move(90)

            names = ("new", *(f"q-{number}" for number in range(FEW)))
            assert {operator.condition("Ready", name=each)["reason"] for each in names} == {
                "ViewUnavailable"
            }
            assert operator.events("TooSlow") == []
            assert len(operator.events("ViewUnavailable")) == 1, "of the QueueCluster"

    run(scene())
