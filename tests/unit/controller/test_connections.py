"""Connections are made anew when an address or a credential changes, and end after their use."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.controller.credentials import (
    GRACE_SECONDS,
    NO_CREDENTIALS,
    ClusterCredentials,
    Credentials,
)
from postroad.controller.spec.cluster import QueueClusterSpec
from support.manual_loop import move, run
from support.resources import queue_cluster
from support.running_controller import NAMESPACE, RunningController

ROTATED = ClusterCredentials(Credentials(version="2"), Credentials(), Credentials())
URI = {"rabbitmq": {"url": "amqp://elsewhere:5672/%2F", "secretRef": {"name": "rabbitmq"}}}
CLEAR = {"tls": {"mode": "Disabled"}, "keyspace": "postroad"}
POINTS = {"cassandra": {"contactPoints": ["cassandra", "another"]} | CLEAR}


def spec(**change: Any) -> QueueClusterSpec:
    return QueueClusterSpec.model_validate(queue_cluster(NAMESPACE, **change)["spec"])


@pytest.mark.parametrize(
    ("change", "credentials", "anew"),
    [
        ({"allowedNamespaces": {"from": "All"}}, NO_CREDENTIALS, False),
        (
            {"cassandra": {"contactPoints": ["cassandra"], "rowLifetime": "100h"}
             | {"secretRef": {"name": "cassandra"}} | CLEAR},
            NO_CREDENTIALS,
            False,
        ),
        (URI, NO_CREDENTIALS, True),
        (POINTS, NO_CREDENTIALS, True),
        ({}, ROTATED, True),
    ],
    ids=["namespaces", "row lifetime", "address", "contact points", "credentials"],
)  # fmt: skip
def test_only_addresses_and_credentials_make_connections_anew(
    change: dict[str, Any], credentials: ClusterCredentials, anew: bool
) -> None:
    async def scene() -> None:
        connections = RunningController().controller._connections
        first = connections.to("uid", spec(), NO_CREDENTIALS)

        assert (connections.to("uid", spec(**change), credentials) is not first) is anew
        await connections.close()

    run(scene())


def test_what_still_uses_old_connections_can_end() -> None:
    async def scene() -> None:
        operator = RunningController()
        connections = operator.controller._connections
        connections.to("uid", spec(), NO_CREDENTIALS)
        connections.to("uid", spec(), ROTATED)
        await move(GRACE_SECONDS - 2)
        assert [each.closed for each in operator.connected] == [False, False]

        await move(3)
        assert [each.closed for each in operator.connected] == [True, False]

        connections.to("uid", spec(**URI), ROTATED)
        await connections.close()
        assert [each.closed for each in operator.connected] == [True, True, True]

    run(scene())
