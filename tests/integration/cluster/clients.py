"""The cluster as its clients see it: Cassandra at a consistency, quorum queues, objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import boto3
import pika
from botocore.config import Config
from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, ExecutionProfile
from cassandra.cluster import Cluster as Driver
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import SimpleStatement

from stack.clusters import Cluster

QUORUM, ALL, ONE = ConsistencyLevel.QUORUM, ConsistencyLevel.ALL, ConsistencyLevel.ONE


@contextlib.contextmanager
def cql(cluster: Cluster, *nodes: str) -> Iterator[Any]:
    """Yield a session whose coordinators are these nodes only."""
    environment = cluster.environment()
    hosts = [cluster.node(name).host for name in nodes]
    login = PlainTextAuthProvider(
        environment["POSTROAD_CASSANDRA_USERNAME"], environment["POSTROAD_CASSANDRA_PASSWORD"]
    )
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy(hosts), request_timeout=30
    )
    driver = Driver(
        hosts,
        auth_provider=login,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        connect_timeout=20,
        control_connection_timeout=20,
    )
    try:
        yield driver.connect()
    finally:
        driver.shutdown()


def execute(session: Any, statement: str, level: int = QUORUM) -> list[Any]:
    """Execute a statement at a consistency level."""
    return list(session.execute(SimpleStatement(statement, consistency_level=level)))


def make_letters(session: Any, keyspace: str) -> None:
    """Make a table with a copy on each of three nodes."""
    execute(
        session,
        f"CREATE KEYSPACE {keyspace} WITH replication ="
        " {'class': 'NetworkTopologyStrategy', 'dc1': 3}",
    )
    execute(session, f"CREATE TABLE {keyspace}.letters (id int PRIMARY KEY, body text)")


@contextlib.contextmanager
def amqp(cluster: Cluster, node: str | None = None) -> Iterator[Any]:
    """Yield a confirming channel, to a node or through the balancer."""
    uri = cluster.environment()["POSTROAD_RABBITMQ_URI"]
    if node is not None:
        uri = cluster.node(node).environment()["POSTROAD_RABBITMQ_URI"]
    parameters = pika.URLParameters(uri)
    parameters.socket_timeout = parameters.blocked_connection_timeout = 15
    connection = pika.BlockingConnection(parameters)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def declare(channel: Any, queue: str) -> None:
    """Declare a quorum queue on all nodes."""
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})


def publish(channel: Any, queue: str, body: str) -> None:
    """Publish a durable message and wait for the confirm."""
    properties = pika.BasicProperties(delivery_mode=2)
    channel.basic_publish("", queue, body.encode(), properties, mandatory=True)


def drain(channel: Any, queue: str) -> set[str]:
    """Take all messages out of a queue."""
    found: set[str] = set()
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.add(body.decode())


def store(environment: dict[str, str]) -> Any:
    """Return a client of the objects' store."""
    return boto3.client(
        "s3",
        endpoint_url=environment["POSTROAD_S3_ENDPOINT"],
        region_name=environment["POSTROAD_S3_REGION"],
        aws_access_key_id=environment["POSTROAD_S3_ACCESS_KEY"],
        aws_secret_access_key=environment["POSTROAD_S3_SECRET_KEY"],
        config=Config(retries={"max_attempts": 1}, connect_timeout=5, read_timeout=20),
    )
