"""QueueClusters and Secrets for the servers that POSTROAD_* variables name."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from postroad.ports.kubernetes import Object
from support.resources import queue_cluster, secret

SERVERS = ("rabbitmq", "cassandra", "s3")
USUAL_PORT = "9042"


def named_cluster(
    variables: Mapping[str, str],
    namespace: str,
    name: str = "main",
    *,
    copies: int = 3,
    secrets: Mapping[str, str] | None = None,
) -> Object:
    """Return a QueueCluster of the servers, whose keyspace is the variables' too. `copies`: of each
    row; `secrets`: the names of Secrets that differ from those of their servers."""
    references = {each: {"name": (secrets or {}).get(each, each)} for each in SERVERS}
    return queue_cluster(
        namespace,
        name,
        rabbitmq={
            "url": _without_login(variables["POSTROAD_RABBITMQ_URI"]),
            "managementURL": _without_login(variables["POSTROAD_RABBITMQ_MANAGEMENT_URL"]),
            "secretRef": references["rabbitmq"],
        },
        cassandra={
            "contactPoints": variables["POSTROAD_CASSANDRA_CONTACT_POINTS"].split(","),
            "port": int(variables.get("POSTROAD_CASSANDRA_PORT", USUAL_PORT)),
            "localDatacenter": variables["POSTROAD_CASSANDRA_LOCAL_DATACENTER"],
            "keyspace": variables["POSTROAD_CASSANDRA_KEYSPACE"],
            "replication": {"class": "NetworkTopologyStrategy", "factor": copies},
            "secretRef": references["cassandra"],
            "tls": {"mode": "Disabled"},
        },
        s3={"url": variables["POSTROAD_S3_ENDPOINT"], "secretRef": references["s3"]},
    )


def named_logins(variables: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return what the Secret of each server has in it."""
    broker = urlsplit(variables["POSTROAD_RABBITMQ_URI"])
    return {
        "rabbitmq": {
            "username": unquote(broker.username or ""),
            "password": unquote(broker.password or ""),
        },
        "cassandra": {
            "username": variables["POSTROAD_CASSANDRA_USERNAME"],
            "password": variables["POSTROAD_CASSANDRA_PASSWORD"],
        },
        "s3": {
            "accessKey": variables["POSTROAD_S3_ACCESS_KEY"],
            "secretKey": variables["POSTROAD_S3_SECRET_KEY"],
        },
    }


def named_secrets(variables: Mapping[str, str], namespace: str) -> list[Object]:
    """Return the Secrets of the servers, named after them."""
    return [secret(namespace, name, login) for name, login in named_logins(variables).items()]


def _without_login(uri: str) -> str:
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
