"""The clients with nothing around them, making what the operator makes of a MailQueue.

As a script would: threads, each with its connections, and no question whether anything is there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import boto3
import pika
from botocore.config import Config
from cassandra.cluster import Session
from kubernetes import client, config

from bench.operator_setup import Site
from postroad.adapters.cassandra import history, statements
from postroad.adapters.cassandra.connection import cluster_of
from postroad.adapters.cassandra.session import Statement
from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.topology import DeclaredExchange, Topology
from postroad.controller.kubernetes.api import GROUP, MAIL_QUEUE, VERSION
from postroad.controller.run.workqueue import SHARE, TASKS
from postroad.domain.queues.names import BUCKET_CLAIM, QueueName
from support.access import cassandra_of
from support.resources import mail_queue

AT_ONCE = max(1, int(TASKS * SHARE))
"""As many as the operator reconciles at the same time of one QueueCluster."""

REQUESTS = 3
"""Of the API server for each queue: its MailQueue, its ConfigMap, its ServiceAccount."""

_SECONDS = timedelta(seconds=30)
_STATEMENTS = (
    history.APPEND,
    statements.ADVANCE_BROWSE_START,
    statements.ADVANCE_CONTENT_START,
)


class BareQueueMaker:
    """The connections of one thread. `session` and `prepared`: of all threads."""

    def __init__(self, site: Site, session: Session, prepared: dict[Statement, Any]) -> None:
        variables = site.variables
        self._namespace = site.namespace
        self._session, self._prepared = session, prepared
        parameters = pika.URLParameters(variables["POSTROAD_RABBITMQ_URI"])
        self._rabbitmq = pika.BlockingConnection(parameters)
        self._channel = self._rabbitmq.channel()
        self._s3 = boto3.session.Session().client(
            "s3",
            endpoint_url=variables["POSTROAD_S3_ENDPOINT"],
            region_name=variables["POSTROAD_S3_REGION"],
            aws_access_key_id=variables["POSTROAD_S3_ACCESS_KEY"],
            aws_secret_access_key=variables["POSTROAD_S3_SECRET_KEY"],
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )
        self._api = config.new_client_from_config(  # type: ignore[no-untyped-call]
            config_file=str(site.kubeconfig)
        )
        self._resources = client.CustomObjectsApi(self._api)
        self._core = client.CoreV1Api(self._api)

    def declare(self, wanted: Topology) -> None:
        """Declare exchanges, queues and bindings."""
        for exchange in wanted.exchanges:
            self._channel.exchange_declare(
                exchange.name, exchange.kind, durable=True, arguments=dict(exchange.arguments)
            )
        for queue in wanted.queues:
            self._channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
            for each in queue.bindings:
                self._channel.queue_bind(queue.name, each.exchange, each.routing_key)

    def make(self, name: QueueName) -> None:
        """Make a queue on all servers."""
        body = mail_queue(self._namespace, name.name)
        plural = MAIL_QUEUE.plural
        self._resources.create_namespaced_custom_object(
            GROUP, VERSION, self._namespace, plural, body
        )
        self.declare(
            Topology((DeclaredExchange(name.claim_exchange, "direct", {"claimant": "bare"}),), ())
        )
        self.declare(topology.topology_of(name, 20))
        self._write_rows(str(name))
        bucket = name.bucket("postroad-")
        self._s3.create_bucket(Bucket=bucket)
        self._s3.put_object(Bucket=bucket, Key=BUCKET_CLAIM, Body=b"{}")
        metadata = client.V1ObjectMeta(name=f"{name.name}-queue", namespace=self._namespace)
        data = {f"POSTROAD_SETTING_{number}": "a value" for number in range(20)}
        settings = client.V1ConfigMap(metadata=metadata, data=data)
        self._core.create_namespaced_config_map(self._namespace, settings)
        account = client.V1ServiceAccount(metadata=metadata)
        self._core.create_namespaced_service_account(self._namespace, account)

    def _write_rows(self, queue: str) -> None:
        now = datetime.now(UTC)
        document = json.dumps({"sliceWindow": "1h", "bucketCount": 3})
        first = (queue, 1, 1, "ConfigurationCreated", now, document)
        limit = (round(now.timestamp() * 1_000_000), now, queue, uuid4())
        for statement, values in zip(_STATEMENTS, (first, limit, limit), strict=True):
            self._session.execute(self._prepared[statement], values)

    def close(self) -> None:
        self._rabbitmq.close()
        self._s3.close()
        self._api.close()


class BareClients:
    """So many threads as the operator has for one QueueCluster. Used in one other thread."""

    def __init__(self, site: Site, at_once: int = AT_ONCE) -> None:
        self._cassandra = cluster_of(
            cassandra_of(site.variables, site.variables["POSTROAD_CASSANDRA_KEYSPACE"]),
            *(_SECONDS, _SECONDS),
        )
        session = self._cassandra.connect()
        keyspace = site.variables["POSTROAD_CASSANDRA_KEYSPACE"]
        prepared = {
            each: session.prepare(each.cql.replace("{keyspace}", keyspace)) for each in _STATEMENTS
        }
        self._makers = [BareQueueMaker(site, session, prepared) for _ in range(at_once)]

    def make(self, names: Sequence[QueueName]) -> float:
        """Make queues, and what they share; return the seconds that it took."""
        left = iter(names)
        began = time.perf_counter()
        self._makers[0].declare(topology.SHARED)
        with ThreadPoolExecutor(len(self._makers)) as threads:
            for each in [threads.submit(_make_all, maker, left) for maker in self._makers]:
                each.result()
        return time.perf_counter() - began

    def close(self) -> None:
        """Close all connections."""
        for each in self._makers:
            each.close()
        self._cassandra.shutdown()


def _make_all(maker: BareQueueMaker, left: Iterator[QueueName]) -> None:
    """Make queues until none is left: the threads take them from one list."""
    for name in left:
        maker.make(name)


def delete_queues(site: Site, names: Sequence[QueueName]) -> None:
    """Delete what queues have in RabbitMQ, with their claims."""
    connection = pika.BlockingConnection(
        pika.URLParameters(site.variables["POSTROAD_RABBITMQ_URI"])
    )
    try:
        channel = connection.channel()
        for name in names:
            for exchange in (name.exchange, name.claim_exchange):
                channel.exchange_delete(exchange)
            for queue in (name.work_queue, name.dead_queue):
                channel.queue_delete(queue)
    finally:
        connection.close()
