"""`distributed://NAMESPACE.NAME`: the distributed engine over RabbitMQ, Cassandra and S3.

Creates missing tables for a queue without an operator, which computes their options itself.

The configuration history of a queue, without the queue.

A queue to be erased, created or not, without opening it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import urlsplit

from postroad.administration.configuration import ConfigurationOf
from postroad.bootstrap import engine
from postroad.bootstrap.cluster import ClusterServers, bucket_of
from postroad.bootstrap.engine import OpenRequest, check_parts, open_over
from postroad.distributed.maintenance.erasure import Erasable, Part
from postroad.domain.delivery.retries import DEFAULT_LANES
from postroad.domain.queues.lifetimes import lifetimes_of
from postroad.domain.queues.names import BUCKET_CLAIM, QueueName
from postroad.errors import InvalidQueueURL
from postroad.ports.blobs import Blobs
from postroad.ports.mail_queue import MailQueue
from postroad.ports.servers import Servers
from postroad.ports.view import TableOptions
from postroad.settings import Settings, from_environment

ROW_LIFETIME = timedelta(days=14)
MAX_SLICE = timedelta(hours=1)

MAX_REPLICAS = 3
"""Copies of a row; fewer where the data center has not as many nodes."""


async def create_tables(servers: ClusterServers) -> None:
    """Create the keyspace and tables where there are none; leave existing ones as they are.
    Raises: ViewError, CredentialsRefused."""
    views = servers.views()
    if await views.exists():
        return
    lifetimes = lifetimes_of(ROW_LIFETIME, [MAX_SLICE], max(DEFAULT_LANES))
    replicas = min(MAX_REPLICAS, await views.local_nodes())
    await views.create(
        TableOptions(
            replication={
                "class": "NetworkTopologyStrategy",
                servers.local_datacenter: str(replicas),
            },
            row_lifetime=lifetimes.row_lifetime,
            compaction_window=lifetimes.compaction_window,
            gc_grace=lifetimes.gc_grace,
        )
    )


async def open_requested(request: OpenRequest) -> MailQueue:
    name = QueueName.parse(request.url.netloc)
    servers = ClusterServers(request.settings)
    try:
        if request.create:
            await create_tables(servers)
        return await open_over(servers, name, bucket_of(request.settings, name), request)
    except BaseException:
        await servers.close()
        raise


class _SharedServers(ClusterServers):
    """Servers of several queues, which outlast each of them."""

    async def close(self) -> None:
        """Nothing: the queue that ends is not the last one."""

    async def end(self) -> None:
        await super().close()


OpenShared = Callable[[QueueName, Settings], Awaitable[tuple[MailQueue, ConfigurationOf]]]


@asynccontextmanager
async def open_shared(settings: Settings) -> AsyncIterator[OpenShared]:
    """Give what opens queues, each with its own settings, over connections that all of them share.
    It raises as `open_queue`. Raises: InvalidSettings."""
    servers = _SharedServers(settings)

    async def opened(name: QueueName, own: Settings) -> tuple[MailQueue, ConfigurationOf]:
        request = OpenRequest(urlsplit(f"distributed://{name}"), own, False, None)
        queue = await open_over(servers, name, bucket_of(own, name), request)
        return queue, ConfigurationOf(name, servers.history(name), servers.views().view(str(name)))

    try:
        yield opened
    finally:
        await servers.end()


def _servers_of(
    url: str, settings: Settings | None, lacking: str
) -> tuple[QueueName, Servers, str]:
    """Return the name of a queue, the servers behind its URL, and its bucket. `settings`: absent,
    those of the environment, which only servers need; `lacking`: words for a queue without servers.
    Raises: InvalidQueueURL, InvalidQueueName, InvalidSettings."""
    parts = urlsplit(url)
    check_parts(parts)
    if parts.scheme == "memory":
        name = QueueName("memory", parts.netloc)
        return name, engine.connect(), name.bucket("")
    if parts.scheme != "distributed":
        raise InvalidQueueURL(f"{url!r} has no {lacking}")
    name, given = QueueName.parse(parts.netloc), settings or from_environment()
    return name, ClusterServers(given), bucket_of(given, name)


@asynccontextmanager
async def open_history(
    url: str, settings: Settings | None = None
) -> AsyncIterator[ConfigurationOf]:
    """Open the configuration history of a queue, created or not: a URL, or `NAMESPACE.NAME`.
    Raises: InvalidQueueURL, InvalidQueueName, InvalidSettings."""
    written = url if "://" in url else f"distributed://{url}"
    name, servers, _ = _servers_of(written, settings, "view, and so no configuration history")
    try:
        yield ConfigurationOf(name, servers.history(name), servers.views().view(str(name)))
    finally:
        await servers.close()


class Unclaimed:
    """`ErasureClaims` of an administrator, who decides what is to be erased. `owns`: whether the
    bucket is the queue's own."""

    def __init__(self, blobs: Blobs, *, owns: bool) -> None:
        self._blobs = blobs
        self._owns = owns

    async def claim(self, part: Part) -> None:
        """Nothing is asked."""

    async def release(self, part: Part) -> None:
        if part is Part.BYTES and self._owns:
            async for _ in self._blobs.empty(BUCKET_CLAIM):
                pass

    async def owns_bucket(self) -> bool:
        return self._owns


@asynccontextmanager
async def open_erasable(url: str, settings: Settings | None = None) -> AsyncIterator[Erasable]:
    """Open a queue to be erased, by its URL; `settings` name the servers, and the bucket that
    queues share. Raises: InvalidQueueURL, InvalidQueueName, InvalidSettings."""
    given = settings or from_environment()
    name, servers, bucket = _servers_of(url, given, "servers that it could be erased on")
    try:
        yield Erasable(
            name=name,
            broker=servers.broker(name),
            view=servers.views().view(str(name)),
            history=servers.history(name),
            blobs=servers.blobs(bucket),
            claims=Unclaimed(servers.blobs(bucket), owns=bucket != given.s3.bucket),
        )
    finally:
        await servers.close()
