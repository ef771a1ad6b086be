"""The operator connects to real servers as a QueueCluster names them: in clear or over TLS, by what
the servers of this run offer (`make test-matrix LEGS=tls`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from postroad.adapters.clocks import MachineClock
from postroad.bootstrap.cluster import connect
from postroad.controller.credentials import Connections, read_credentials
from postroad.controller.kubernetes.api import QUEUE_CLUSTER, SECRET
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.domain.values.text import api_name
from postroad.ports.kubernetes import Object
from postroad.ports.servers import Checked
from postroad.tls import Encryption
from support import resources
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld

pytestmark = pytest.mark.needs("rabbitmq", "cassandra", "s3")

NAMESPACE = "mail"
ENCRYPTED = os.environ.get("POSTROAD_CASSANDRA_TLS", "disabled") != "disabled"
over_tls = pytest.mark.skipif(not ENCRYPTED, reason="the servers of this run offer no TLS")


def without_login(address: str) -> str:
    uri = urlsplit(address)
    return uri._replace(netloc=uri.netloc.rpartition("@")[2]).geturl()


def declared(variables: Mapping[str, str]) -> Object:
    """Return a QueueCluster with the servers of the variables."""
    trusted = {"tls": {"caRef": {"name": "authorities"}}} if ENCRYPTED else {}
    mode = api_name(Encryption(variables.get("POSTROAD_CASSANDRA_TLS", "disabled")))
    return resources.queue_cluster(
        NAMESPACE,
        rabbitmq={
            "url": without_login(variables["POSTROAD_RABBITMQ_URI"]),
            "managementURL": without_login(variables["POSTROAD_RABBITMQ_MANAGEMENT_URL"]),
            "secretRef": {"name": "rabbitmq"},
        }
        | trusted,
        cassandra={
            "contactPoints": variables["POSTROAD_CASSANDRA_CONTACT_POINTS"].split(","),
            "port": int(variables["POSTROAD_CASSANDRA_PORT"]),
            "keyspace": "postroad",
            "localDatacenter": variables["POSTROAD_CASSANDRA_LOCAL_DATACENTER"],
            "secretRef": {"name": "cassandra"},
            "tls": trusted.get("tls", {}) | {"mode": mode},
        },
        s3={"url": variables["POSTROAD_S3_ENDPOINT"], "secretRef": {"name": "s3"}} | trusted,
    )


def secrets(variables: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return what the Secrets hold, by name."""
    uri = urlsplit(variables["POSTROAD_RABBITMQ_URI"])
    file = variables.get("POSTROAD_CA_FILE")
    return {
        "rabbitmq": {
            "username": unquote(uri.username or ""),
            "password": unquote(uri.password or ""),
        },
        "cassandra": {
            "username": variables["POSTROAD_CASSANDRA_USERNAME"],
            "password": variables["POSTROAD_CASSANDRA_PASSWORD"],
        },
        "s3": {
            "accessKey": variables["POSTROAD_S3_ACCESS_KEY"],
            "secretKey": variables["POSTROAD_S3_SECRET_KEY"],
        },
    } | ({"authorities": {"ca.crt": Path(file).read_text()}} if file else {})


@pytest.fixture
async def api() -> MemoryKubernetes:
    made = MemoryKubernetes(KubernetesWorld(MachineClock()))
    for name, content in secrets(os.environ).items():
        await made.create(SECRET, resources.secret(NAMESPACE, name, content))
    return made


async def checked(api: MemoryKubernetes, cluster: Object) -> dict[str, Checked]:
    """Connect as the operator does, and ask each server whether it answers."""
    await api.create(QUEUE_CLUSTER, cluster)
    spec = QueueClusterSpec.model_validate(cluster["spec"])
    connections = Connections(connect)
    try:
        servers = connections.to("uid", spec, await read_credentials(api, NAMESPACE, spec))
        return await servers.check(brief=True)
    finally:
        await connections.close()


async def test_each_server_answers(api: MemoryKubernetes) -> None:
    found = await checked(api, declared(os.environ))

    assert {server: each.error for server, each in found.items()} == dict.fromkeys(found)
    assert set(found) == {"rabbitmq", "cassandra", "s3"}


@over_tls
async def test_without_its_authority_no_server_is_trusted(api: MemoryKubernetes) -> None:
    cluster: Any = deepcopy(declared(os.environ))
    for server in ("rabbitmq", "cassandra", "s3"):
        del cluster["spec"][server]["tls"]["caRef"]

    found = await checked(api, cluster)

    reasons = {server: type(each.error).__name__ for server, each in found.items()}
    assert reasons == dict.fromkeys(found, "TlsRefused")
