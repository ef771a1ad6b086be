"""A keyspace, a bucket and queue names of the measurement's own on the real servers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pydantic import SecretStr

import servers
from bench.bare_clients import BareCassandra, BareRabbitMQ, BareStore
from postroad.adapters.rabbitmq.connection import parameters_of
from postroad.adapters.s3.clients import Access as S3Access
from postroad.adapters.s3.clients import ObjectClients
from postroad.bootstrap.cluster import ClusterServers
from postroad.bootstrap.distributed import create_tables
from postroad.domain.queues.names import QueueName
from postroad.settings import Settings, from_environment


@dataclass(frozen=True)
class BenchServers:
    """A keyspace and a bucket; any number of queues."""

    settings: Settings
    servers: ClusterServers

    @property
    def keyspace(self) -> str:
        return self.settings.cassandra.keyspace

    @property
    def bucket(self) -> str:
        return self.settings.s3.bucket or ""

    async def bare_cassandra(self) -> BareCassandra:
        """Return the driver on this keyspace."""
        return await BareCassandra.open(servers.cassandra(self.keyspace))

    async def bare_rabbitmq(self) -> BareRabbitMQ:
        """Return a connection with one channel."""
        broker = BareRabbitMQ(parameters_of(servers.rabbitmq(), "bench"))
        await broker.ready()
        return broker

    def bare_store(self) -> BareStore:
        """Return obstore on this bucket."""
        s3 = self.settings.s3
        access = S3Access(s3.endpoint, s3.region, _secret(s3.access_key), _secret(s3.secret_key))
        return BareStore(ObjectClients(access, self.bucket))


def fresh_name() -> QueueName:
    """Return an unused queue name."""
    return QueueName("bench", servers.fresh())


@asynccontextmanager
async def fresh_servers() -> AsyncIterator[BenchServers]:
    """Make a keyspace with its tables and a bucket; remove them at the end."""
    keyspace = servers.fresh()
    given = {"POSTROAD_CASSANDRA_KEYSPACE": keyspace, "POSTROAD_S3_BUCKET": f"bench-{keyspace}"}
    settings = from_environment({**os.environ, **given})
    target = BenchServers(settings, ClusterServers(settings))
    try:
        await create_tables(target.servers)
        await target.servers.blobs(target.bucket).create()
        yield target
    finally:
        await target.servers.blobs(target.bucket).drop()
        await target.servers.close()
        session = servers.session(keyspace)
        await session.run("DROP KEYSPACE IF EXISTS {keyspace}")
        await session.close()


@asynccontextmanager
async def queue_names(target: BenchServers) -> AsyncIterator[QueueName]:
    """Give the name of a queue whose broker objects are removed at the end."""
    name = fresh_name()
    try:
        yield name
    finally:
        await target.servers.broker(name).delete()


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
