"""Statuses while the API server fails one kind of request: each error is planted at each request of
a resource's life, and the status tells it, then heals."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from postroad.controller.kubernetes.api import APPLIED_HASH, CHILDREN, MAIL_QUEUE, QUEUE_CLUSTER
from postroad.ports.kubernetes import Object
from support import resources
from support.manual_loop import move, run
from support.memory.fault_injection import ERRORS, WORDS, Step
from support.resources import workers
from support.running_controller import NAMESPACE, RunningController, running_controller

PIPELINE = {"archive": {"schedule": "7 * * * *"}, "addresses": {"keep": "None"}, "image": "p:1"}

BOUND = 60
"""Seconds after which a status tells what fails; a few reconciles, and their delays."""

HEALED = 460
"""Seconds after which all is as declared: no delay is longer than five minutes and a half of it."""


async def declared(op: RunningController) -> None:
    """Declare a queue with every child."""
    cluster = resources.queue_cluster(NAMESPACE)
    cluster["spec"]["rabbitmq"] |= {"managementURL": "http://rabbitmq:15672", "users": {}}
    for each in (*resources.secrets(NAMESPACE), cluster):
        await op.create(each)
    spec: dict[str, Any] = {
        "workers": workers(2),
        "intake": resources.intake(),
        "pipeline": PIPELINE,
    }
    spec["deletionPolicy"] = "Delete"
    await op.create(resources.mail_queue(NAMESPACE, **spec))


async def changed(op: RunningController) -> None:
    """Change a queue so that each of its children is written or deleted."""
    await op.change({"workers": {"concurrency": 17}, "intake": None, "pipeline": None})


async def kept(op: RunningController) -> None:
    """Let the deletion of a queue erase nothing."""
    await op.change({"deletionPolicy": "Retain"})


async def deleted(op: RunningController) -> None:
    """Delete a queue, then its QueueCluster."""
    await op.delete(MAIL_QUEUE, "outgoing")
    await op.delete(QUEUE_CLUSTER, "main")


STEPS = {each.__name__: each for each in (declared, changed, kept, deleted)}


def state(op: RunningController) -> dict[str, Any]:
    """Return what there is of both resources, their children and finalizers."""
    found: dict[str, Any] = {}
    for place, each in op.kubernetes.objects.items():
        metadata = each["metadata"]
        if place.plural in {kind.plural for kind in CHILDREN}:
            found[f"{place.plural} {place.name}"] = metadata["annotations"][APPLIED_HASH]
        elif place.plural in ("mailqueues", "queueclusters"):
            found[f"{place.plural} {place.name}"] = metadata.get("finalizers")
    return found


def tells(op: RunningController) -> bool:
    """Whether a condition or an Event has the planted words, or the name of an unnamed error."""
    statuses = [
        each.get("status", {}).get("conditions")
        for place, each in op.kubernetes.objects.items()
        if place.plural in ("mailqueues", "queueclusters")
    ]
    text = json.dumps([statuses, op.events("StatusNotWritten")])
    return WORDS in text or "LookupError: see the operator's log" in text


def plant(op: RunningController, request: str, error: Callable[[], Exception]) -> None:
    async def before(step: Step) -> None:
        if step.operation.startswith(f"{request} "):
            raise error()

    op.api.faults.before = before


async def reached(op: RunningController, last: str) -> None:
    """Go through the steps before one."""
    for name, step in STEPS.items():
        if name == last:
            return
        await step(op)
        await move(20)


@cache
def requests_of(step: str) -> list[str]:
    """Return the kinds of requests of a step, as `VERB KIND`."""
    found: set[str] = set()

    async def scene() -> None:
        async with running_controller() as op:
            await reached(op, step)
            before = len(op.calls)
            await STEPS[step](op)
            await move(20)
            found.update(" ".join(each.split()[:2]) for each in op.calls[before:])

    run(scene())
    return sorted(found)


@cache
def outcome(step: str) -> dict[str, Any]:
    """Return what there is after a step without errors."""
    found: dict[str, Any] = {}

    async def scene() -> None:
        async with running_controller() as op:
            await reached(op, step)
            await STEPS[step](op)
            await move(60)
            found.update(state(op))

    run(scene())
    return found


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("step", STEPS)
def test_error_of_the_api_server_shows_in_the_status_until_it_ends(step: str, error: str) -> None:
    requests, wanted = requests_of(step), outcome(step)
    assert requests

    async def scene(request: str) -> None:
        async with running_controller() as op:
            await reached(op, step)
            plant(op, request, ERRORS[error])
            await STEPS[step](op)
            await move(BOUND)
            writes_status = request.startswith("update") and step != "deleted"
            is_done = state(op) == wanted and not writes_status
            assert is_done or tells(op), f"{request}: {conditions_of(op)}"
            op.api.faults.before = None
            await move(HEALED)
            assert state(op) == wanted, request
            assert all(each["status"] == "True" for each in ready(op)), request

    for request in requests:
        run(scene(request))


def ready(op: RunningController) -> list[Object]:
    kinds = {"mailqueues": MAIL_QUEUE, "queueclusters": QUEUE_CLUSTER}
    return [
        op.condition("Ready", kinds[place.plural], place.name)
        for place in list(op.kubernetes.objects)
        if place.plural in kinds
    ]


def conditions_of(op: RunningController) -> list[str]:
    return [
        f"{place.plural} {each['type']}={each['status']} {each['message']}"
        for place, found in op.kubernetes.objects.items()
        for each in (found.get("status") or {}).get("conditions") or []
        if place.plural in ("mailqueues", "queueclusters")
    ]
