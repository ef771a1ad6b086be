"""A look into the real servers past postroad: what is really there."""

from __future__ import annotations

import base64
import json
import os
import ssl
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import DCAwareRoundRobinPolicy

from postroad.domain.queues.names import BUCKET_CLAIM


def broker_object(kind: str, name: str) -> dict[str, Any] | None:
    """Return a queue or an exchange as RabbitMQ's management API shows it; None when it is gone."""
    try:
        found: dict[str, Any] = _manage("GET", f"{kind}/%2F/{quote(name, safe='')}")
        return found
    except HTTPError as error:
        if error.code == 404:
            return None
        raise


def make_broker_user(name: str, password: str) -> None:
    """Make a user of RabbitMQ who may do everything in the vhost `/`."""
    _manage("PUT", f"users/{name}", {"password": password, "tags": "monitoring"})
    _manage("PUT", f"permissions/%2F/{name}", dict.fromkeys(("configure", "write", "read"), ".*"))


def remove_broker_user(name: str) -> None:
    """Delete a user of RabbitMQ, which closes the connections of this user."""
    _manage("DELETE", f"users/{name}")


def broker_users() -> set[str]:
    """Return the users of RabbitMQ."""
    return {each["name"] for each in _manage("GET", "users")}


def connected_broker_users() -> set[str]:
    """Return the users who have connections to RabbitMQ."""
    return {each["user"] for each in _manage("GET", "connections")}


def _manage(method: str, path: str, body: object = None) -> Any:
    broker = urlsplit(os.environ["POSTROAD_RABBITMQ_URI"])
    base = urlsplit(os.environ["POSTROAD_RABBITMQ_MANAGEMENT_URL"])
    data = None if body is None else json.dumps(body).encode()
    address = f"http://{base.hostname}:{base.port}/api/{path}"
    login = f"{unquote(broker.username or '')}:{unquote(broker.password or '')}"
    headers = {
        "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}",
        "Content-Type": "application/json",
    }
    request = Request(address, data, headers, method=method)
    with urlopen(request, timeout=10) as answer:
        return json.loads(answer.read() or b"null")


PATIENCE_SECONDS = 30
"""How long the control connection may take too: the driver would give it two seconds, which the
tables of all tests' keyspaces exceed on a loaded machine."""


def cql(statement: str, *values: object) -> list[Any]:
    """Run one statement and return its rows, as a quorum has them: a host whose disk was full may
    have missed a deletion, and keeps it for the next repair."""
    environment = os.environ
    profile = ExecutionProfile(
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        load_balancing_policy=DCAwareRoundRobinPolicy(
            environment["POSTROAD_CASSANDRA_LOCAL_DATACENTER"]
        ),
        request_timeout=PATIENCE_SECONDS,
    )
    cluster = Cluster(
        environment["POSTROAD_CASSANDRA_CONTACT_POINTS"].split(","),
        port=int(environment["POSTROAD_CASSANDRA_PORT"]),
        auth_provider=PlainTextAuthProvider(
            environment["POSTROAD_CASSANDRA_USERNAME"], environment["POSTROAD_CASSANDRA_PASSWORD"]
        ),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        ssl_context=_tls() if environment.get("POSTROAD_CASSANDRA_TLS") == "verify-ca" else None,
        protocol_version=5,
        connect_timeout=PATIENCE_SECONDS,
        control_connection_timeout=PATIENCE_SECONDS,
        schema_metadata_enabled=False,
    )
    try:
        return list(cluster.connect().execute(statement, values or None))
    finally:
        cluster.shutdown()


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=os.environ.get("POSTROAD_CA_FILE"))
    context.check_hostname = False
    return context


def store_client(server: str = "S3") -> Any:
    """Return a client of a store, `S3` or `MINIO`."""
    environment = os.environ
    return boto3.client(
        "s3",
        endpoint_url=environment[f"POSTROAD_{server}_ENDPOINT"],
        region_name=environment[f"POSTROAD_{server}_REGION"],
        aws_access_key_id=environment[f"POSTROAD_{server}_ACCESS_KEY"],
        aws_secret_access_key=environment[f"POSTROAD_{server}_SECRET_KEY"],
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )


def object_keys(bucket: str) -> list[str] | None:
    """Return the keys of a bucket but those of owner objects and of its claim; None: there is no
    such bucket."""
    client = store_client()
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        mails = [each for each in keys if each != BUCKET_CLAIM]
        return [each for each in mails if each.count("/") != 1 or not each.endswith("/owner")]
    except ClientError as error:
        if error.response["Error"]["Code"] in {"NoSuchBucket", "404"}:
            return None
        raise
    finally:
        client.close()
