"""Each verb of the shipped roles is taken away in turn, before the operator starts: what is missing
is named, the operator goes on, and all is well once the verb is given back.

Over a real API server, so for minutes: with `POSTROAD_EVERY_RIGHT`. The same in memory, for each
verb: `tests/unit/controller/test_each_right.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import MAIL_QUEUE, MAIL_QUEUE_TASK, QUEUE_CLUSTER
from postroad.ports.kubernetes import Kind
from support.recording_api import RecordingApi
from support.resources import intake, mail_queue, task, workers
from support.running_operator import Running
from support.shipped_roles import (
    EXECUTORS,
    LEASE_ROLE,
    PIPELINE,
    ROLE,
    USERS,
    WITH_USERS,
    gives_rights,
    shipped,
    unprivileged,
    writes_secrets,
)

__all__ = ["gives_rights", "unprivileged", "writes_secrets"]

pytestmark = [
    pytest.mark.needs("kubernetes"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        "POSTROAD_EVERY_RIGHT" not in os.environ, reason="POSTROAD_EVERY_RIGHT is not set"
    ),
    pytest.mark.usefixtures("writes_secrets", "gives_rights"),
]

SHOWN_SECONDS, RESTORED_SECONDS = 12, 120
WITHOUT_EFFECT = {
    # Events are lost, and the log has why.
    *(("events", verb) for verb in ("create", "get", "patch")),
    # Asked for only where another process scaled a Deployment.
    ("horizontalpodautoscalers", "list"),
    ("scaledobjects", "list"),
    # Asked for where the API server has the admission plug-in for it.
    ("mailqueues/finalizers", "update"),
    ("mailqueuetasks/finalizers", "update"),
    # Asked for once a Job has ended (tests/unit/controller/test_each_right.py).
    ("mailqueuetasks", "delete"),
}


class Right(NamedTuple):
    """A verb that a role has. `named`: the beginning of the role's name."""

    kind: Kind
    named: str
    resource: str
    verb: str


def rights_of(kind: Kind, role: dict[str, Any]) -> Iterator[Right]:
    for rule in role["rules"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield Right(kind, role["metadata"]["name"], resource, verb)


RIGHTS = sorted(
    {
        *rights_of(ROLE, shipped("ClusterRole")),
        *rights_of(ROLE, shipped("ClusterRole", "postroad-operator-users", USERS)),
        *rights_of(ROLE, shipped("ClusterRole", "postroad-operator-executors", EXECUTORS)),
        *rights_of(LEASE_ROLE, shipped("Role")),
    },
    key=lambda each: each[1:],
)


def without(role: dict[str, Any], right: Right) -> list[dict[str, Any]]:
    """Return the rules of a role but for one verb."""
    rules = []
    for rule in role["rules"]:
        if right.resource in rule["resources"] and right.verb in rule["verbs"]:
            others = [each for each in rule["resources"] if each != right.resource]
            verbs = [each for each in rule["verbs"] if each != right.verb]
            rules += [{**rule, "resources": others}] if others else []
            rules += [{**rule, "resources": [right.resource], "verbs": verbs}] if verbs else []
        else:
            rules.append(rule)
    return rules


class Sight:
    """What the operator shows of a right that is missing, in conditions and in its readiness."""

    def __init__(self, operator: Running, right: Right) -> None:
        self._operator = operator
        self._words = (f'cannot {right.verb} resource "{right.resource}"', _asked(right))
        self.texts: set[str] = set()

    @property
    def is_named(self) -> bool:
        return any(word in text for text in self.texts for word in self._words)

    async def look(self) -> None:
        """Look for some seconds, or until it is named."""
        for _ in range(10 * SHOWN_SECONDS):
            if self.is_named:
                return
            self.texts.add(self._operator.obstacle())
            for kind, name in (
                *((QUEUE_CLUSTER, "main"), (MAIL_QUEUE, "outgoing"), (MAIL_QUEUE_TASK, "task")),
                (MAIL_QUEUE_TASK, "daily"),
            ):
                found = await self._operator.conditions(name, kind)
                self.texts |= {each["message"] for each in found.values()}
            await self._operator.pause()


def _asked(right: Right) -> str:
    """Return how the operator's readiness names a right; that to give a role away is asked for by
    the API server, which answers with the role."""
    return "postroad-pipeline" if right.verb == "bind" else f"{right.verb} {right.resource}"


@pytest.mark.parametrize("right", RIGHTS, ids=lambda each: f"{each.verb} {each.resource}")
async def test_a_verb_that_is_missing_is_named_and_ends_nothing(
    api: ApiServer, unprivileged: RecordingApi, namespace: str, right: Right
) -> None:
    of_role = namespace if right.kind is LEASE_ROLE else None
    name = right.named if of_role else f"{right.named}-{namespace}"
    role = await api.get(right.kind, of_role, name)
    assert role
    await api.patch(right.kind, of_role, name, {"rules": without(role, right)})
    operator = Running(api, namespace, operator_api=unprivileged)
    operator.begin()
    sight = Sight(operator, right)
    queue = mail_queue(
        namespace,
        workers=workers(2),
        intake=intake(),
        pipeline=PIPELINE,
        networkPolicy={"enabled": True},
        deletionPolicy="Delete",
    )

    await operator.apply_cluster(rabbitmq=WITH_USERS)
    await operator.apply(queue)
    await operator.apply(task(namespace, operation="Maintain"))
    await operator.apply(task(namespace, "daily", operation="Maintain", schedule="@daily"))
    await sight.look()
    change = {"workers": {"replicas": 0}, "intake": None, "pipeline": {"executors": None}}
    await operator.change(change)
    await sight.look()
    await api.delete(MAIL_QUEUE, await operator.queue())
    await sight.look()
    assert sight.is_named or (right.resource, right.verb) in WITHOUT_EFFECT, sight.texts

    await api.patch(right.kind, of_role, name, {"rules": role["rules"]})
    await operator.until_gone(MAIL_QUEUE, "outgoing", RESTORED_SECONDS)
    await operator.apply(mail_queue(namespace, "second", workers=workers()))
    await operator.until(
        lambda found: found["Ready"]["status"] == "True", "second", seconds=RESTORED_SECONDS
    )
    async with asyncio.timeout(RESTORED_SECONDS):
        while operator.obstacle():
            await operator.pause()
    assert operator.is_running
    await operator.stop()
