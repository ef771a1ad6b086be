"""The operator's conditions about a cluster's servers: its own reconciliation, without
Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from postroad.adapters.machine.clocks import MachineClock
from postroad.bootstrap.cluster import connect
from postroad.controller.api import QUEUE_CLUSTER, Kind
from postroad.controller.api_server import ApiServer, Object
from postroad.controller.cluster_health import ClusterHealth
from postroad.controller.clusters import Clusters
from postroad.controller.connections import Connections
from postroad.controller.reporting import Reporter
from support import resources

NAMESPACE = "mail"
TIMEOUT_SECONDS = 600


class Kept(ApiServer):
    """The part of an API server that a QueueCluster's reconciliation uses, over one dictionary."""

    def __init__(self, objects: Sequence[Object]) -> None:
        self._objects: dict[tuple[str, str], Object] = {}
        for each in objects:
            metadata = {"uid": each["kind"], "resourceVersion": "1", "generation": 1}
            metadata |= each["metadata"]
            self._objects[each["kind"], metadata["name"]] = {**each, "metadata": metadata}

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        return self._objects.get((kind.name, name))

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Sequence[Object]:
        return [each for (name, _), each in self._objects.items() if name == kind.name]

    async def replace_status(self, kind: Kind, changed: Object) -> Object | None:
        self._objects[kind.name, changed["metadata"]["name"]] = changed
        return changed

    async def post_event(self, event: Object) -> None:
        """Events are ignored: these tests read conditions."""


class OperatorView:
    """An operator with one QueueCluster, which is reconciled whenever its conditions are asked."""

    def __init__(self, api: Kept, connections: Connections) -> None:
        clock = MachineClock()
        self._api = api
        self._health = ClusterHealth(api, Clusters(api, connections), Reporter(api, clock), clock)

    async def conditions(self) -> Mapping[str, Mapping[str, Any]]:
        """Reconcile, and return the conditions by type."""
        found = await self._api.get(QUEUE_CLUSTER, NAMESPACE, "main")
        assert found is not None
        status = await self._health.reconcile(found)
        return {each["type"]: each for each in status["conditions"]}

    async def until(
        self, claim: Callable[[Mapping[str, Mapping[str, Any]]], bool]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Reconcile until the conditions satisfy `claim`, and return them."""
        found = await self.conditions()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not claim(found):
                    await asyncio.sleep(1)
                    found = await self.conditions()
        assert claim(found), found
        return found


@contextlib.asynccontextmanager
async def operator_of(variables: Mapping[str, str]) -> AsyncIterator[OperatorView]:
    """Yield an operator whose QueueCluster has the servers of the variables."""
    connections = Connections(connect)
    try:
        yield OperatorView(Kept([_resource(variables), *_secrets(variables)]), connections)
    finally:
        await connections.close()


def _resource(variables: Mapping[str, str]) -> Object:
    return resources.queue_cluster(
        NAMESPACE,
        rabbitmq={
            "uri": _without_login(variables["POSTROAD_RABBITMQ_URI"]),
            "managementURL": _without_login(variables["POSTROAD_RABBITMQ_MANAGEMENT_URL"]),
            "secretRef": {"name": "rabbitmq"},
        },
        cassandra={
            "contactPoints": variables["POSTROAD_CASSANDRA_CONTACT_POINTS"].split(","),
            "localDatacenter": variables["POSTROAD_CASSANDRA_LOCAL_DATACENTER"],
            "keyspace": variables["POSTROAD_CASSANDRA_KEYSPACE"],
            "secretRef": {"name": "cassandra"},
        },
        s3={"endpoint": variables["POSTROAD_S3_ENDPOINT"], "secretRef": {"name": "s3"}},
    )


def _secrets(variables: Mapping[str, str]) -> list[Object]:
    login = {
        "username": variables["POSTROAD_CASSANDRA_USERNAME"],
        "password": variables["POSTROAD_CASSANDRA_PASSWORD"],
    }
    keys = {
        "accessKey": variables["POSTROAD_S3_ACCESS_KEY"],
        "secretKey": variables["POSTROAD_S3_SECRET_KEY"],
    }
    logins = [resources.secret(NAMESPACE, name, login) for name in ("rabbitmq", "cassandra")]
    return [*logins, resources.secret(NAMESPACE, "s3", keys)]


def _without_login(uri: str) -> str:
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
