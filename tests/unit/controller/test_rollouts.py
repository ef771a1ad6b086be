"""Pods are replaced when something that they read changes, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.controller.kubernetes.api import SECRET
from support.manual_loop import move, run
from support.resources import intake, relay, secret, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

LONGER_THAN_A_FULL_RECONCILE = 400


def templates(operator: RunningController) -> dict[str, Any]:
    """Return the pod templates by component."""
    return {
        name.removeprefix("outgoing-"): each["spec"]["template"]
        for (plural, _, name), each in operator.kubernetes.objects.items()
        if plural == "deployments"
    }


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}},
        {"data": {"unread": "YQ=="}},
        secret(NAMESPACE, "rabbitmq", {"username": "postroad", "password": "new"}),
    ],
    ids=["annotation", "other key", "password"],
)
def test_a_changed_secret_of_a_server_replaces_no_pods(change: dict[str, Any]) -> None:
    """They read its files again; `test_server_tls` has the authorities, which replace them."""

    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(), intake=intake())
            before = templates(operator)

            await operator.user.patch(SECRET, NAMESPACE, "rabbitmq", change)
            await move(LONGER_THAN_A_FULL_RECONCILE)

            assert templates(operator) == before

    run(scene())


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        ({"workers": {"concurrency": 7}}, {"worker"}),
        ({"workers": {"handler": {"relay": {"host": "elsewhere"}}}}, set()),  # they read it again
        ({"intake": intake(listeners=[relay(port=2500)])}, {"intake"}),
        ({"intake": intake(listeners=[relay(), relay(name="b", port=25)])}, {"intake"}),
        ({"intake": intake("192.0.2.0/24")}, set()),  # they read it again
        ({"intake": {"rules": [{"perDay": 9}], "domains": [{"name": "a.example"}]}}, set()),
        ({"intake": {"hostname": "mx.example.org"}}, set()),
        ({"intake": None}, set()),
        ({"retry": {"maxAge": "48h"}}, {"worker", "intake"}),
    ],
    ids=[
        *("concurrency", "next hop", "port", "listener", "networks", "rules", "name"),
        *("no intake", "retries"),
    ],
)
def test_workers_and_intake_are_replaced_apart(change: dict[str, Any], replaced: set[str]) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers(), intake=intake())
            before = templates(operator)

            await operator.change(change)
            await move(10)

            after = templates(operator)
            assert {each for each in after if after[each] != before[each]} == replaced

    run(scene())
