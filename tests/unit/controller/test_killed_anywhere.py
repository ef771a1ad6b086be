"""After an operator that is killed at any of its outgoing calls, the next one finishes the work.

Calls of Kubernetes, RabbitMQ, Cassandra and S3 are counted together. For each position there is a
run in which the operator dies right behind that call; then a fresh operator runs, and the end has
to be the same as without a kill, without a Warning. Behind calls that only read Kubernetes nothing
is different from the call before, so they are no positions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.controller.kubernetes.api import MAIL_QUEUE, SECRET
from postroad.controller.mailqueue.deletion import Deletion
from postroad.domain.queues.names import QueueName
from postroad.ports.kubernetes import Object
from support.careless_operator import delete_carelessly
from support.manual_loop import move, run
from support.memory.fault_injection import Fault, Step
from support.memory.kubernetes.world import KubernetesWorld
from support.resources import intake, mail_queue, queue_cluster, secret, secrets, view, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

AT_WORK, A_MINUTE, AFTERWARDS = 12, 70, 25
"""Seconds that the first operator has, also to notice a Secret, and that the second has."""

NAME = QueueName(NAMESPACE, "outgoing")
LOGIN = {"username": "postroad", "password": "another"}
COUNTED = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
"""Fields of the metadata that count writes, or tell when they were."""

Act = Callable[[RunningController], Awaitable[None]]


async def create(user: RunningController) -> None:
    for each in secrets(NAMESPACE):
        await user.create(each)
    await user.create(queue_cluster(NAMESPACE))
    parts = {"view": view("1h", 3), "workers": workers(), "intake": intake()}
    queue = mail_queue(NAMESPACE, deletionPolicy="Delete")
    await user.create({**queue, "spec": {**queue["spec"], **parts}})


async def change(user: RunningController) -> None:
    await user.change({"view": view("30m", 5), "workers": {"concurrency": 3}, "intake": None})


async def delete(user: RunningController) -> None:
    await user.delete(MAIL_QUEUE, "outgoing")


async def rotate(user: RunningController) -> None:
    await user.user.patch(SECRET, NAMESPACE, "rabbitmq", secret(NAMESPACE, "rabbitmq", LOGIN))


@dataclass
class Positions:
    """Counts the calls behind which an operator can die, and kills it at one of them."""

    kill_at: int | None = None
    calls: list[str] = field(default_factory=list)

    def plan(self, step: Step) -> Fault | None:
        """Return what happens to a call."""
        verb = step.operation.partition(" ")[0]
        if step.operation == "check" or (step.server == "kubernetes" and verb in ("get", "list")):
            return None
        self.calls.append(f"{step.server}: {step.operation}")
        return Fault.STOP_AFTER if len(self.calls) - 1 == self.kill_at else None


async def end_of(act: Act, positions: Positions) -> dict[str, Any]:
    """Let an operator carry out what a user does, and a second one after it; return the end."""
    async with running_controller() as first:
        first.api.faults = first.faults
        if act is not create:
            await create(first)
            await move(AT_WORK)
        first.faults.plan = positions.plan
        await act(first)
        await move(A_MINUTE if act is rotate else AT_WORK)
    async with running_controller(beside=first) as second:
        await move(AFTERWARDS)
    return {
        **_objects(second.kubernetes),
        "warnings": sorted(_warnings(second.kubernetes)),
        **await _at_servers(second.world),
    }


def _objects(world: KubernetesWorld) -> dict[str, Any]:
    return {
        "/".join(place): _lasting(each)
        for place, each in world.objects.items()
        if place.plural not in ("events", "secrets")
    }


def _lasting(found: Object) -> Object:
    """Return an object without what differs between two runs that end alike."""
    status = found.get("status") or {}
    configuration = status.get("configuration") or {}
    metadata = {key: each for key, each in found["metadata"].items() if key not in COUNTED}
    return {
        **{key: each for key, each in found.items() if key not in ("metadata", "status")},
        "metadata": metadata,
        "conditions": [
            (each["type"], each["status"], each["reason"]) for each in status.get("conditions", [])
        ],
        "configuration": {**configuration, "effectiveFrom": None},
        "history": [each["sequence"] for each in status.get("history", [])],
    }


def _warnings(world: KubernetesWorld) -> list[str]:
    events = (each for place, each in world.objects.items() if place.plural == "events")
    return [each["reason"] for each in events if each["type"] == "Warning"]


async def _at_servers(world: MemoryWorld) -> dict[str, Any]:
    servers = MemoryServers(world)
    history = await servers.history(NAME).load()
    return {
        "queues": await servers.broker(NAME).exists(),
        "bucket": await servers.blobs(NAME.bucket("postroad-")).exists(),
        "events": [(each.sequence, type(each).__name__) for each in history.events],
    }


def survived(act: Act) -> tuple[int, dict[str, Any]]:
    """Return how many positions there are, and the ends that differ, by position and call."""
    ends: dict[int | None, dict[str, Any]] = {}
    counted = Positions()

    async def scene(at: int | None) -> None:
        positions = counted if at is None else Positions(at)
        ends[at] = await end_of(act, positions)

    run(scene(None))
    for position in range(len(counted.calls)):
        run(scene(position))
    different = {
        f"{position} {counted.calls[position]}": end
        for position, end in ends.items()
        if position is not None and end != ends[None]
    }
    return len(counted.calls), different


@pytest.mark.parametrize("act", [create, change, delete, rotate])
def test_a_kill_at_any_call_changes_nothing_of_the_end(
    act: Act, capsys: pytest.CaptureFixture[str]
) -> None:
    positions, different = survived(act)

    with capsys.disabled():
        print(f"{act.__name__}: killed at each of {positions} calls")
    assert different == {}
    assert positions > 15


def test_an_order_that_loses_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deletion, "proceed", delete_carelessly)

    _, different = survived(delete)

    assert different
    assert any(end["bucket"] for end in different.values())
