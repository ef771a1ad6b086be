"""A queue whose history is kept, without opening it: its view, and what Spark needs to read its
tables and its lake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from postroad.adapters.cassandra.connection.connection import Access as CassandraAccess
from postroad.adapters.s3.clients import Access as S3Access
from postroad.bootstrap import open_queue
from postroad.bootstrap.cluster import ClusterServers, cassandra_access, s3_access
from postroad.bootstrap.open_request import check_parts
from postroad.distributed.administration.found_entries import EntryChange
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.configuration.history import ConfigurationEvent
from postroad.domain.configuration.rollout import first_rollout, writing_and_reading
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import EntryKey
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.selection import Selector
from postroad.errors import BlobsRefused, InvalidQueueURL, QueueNotFound
from postroad.ports.servers import Servers
from postroad.ports.view import View
from postroad.settings import Settings, from_environment


@dataclass(frozen=True, slots=True)
class ArchivedQueue:
    """`events`: its configuration history. `reading`: the configurations that rows may have been
    written with. `bucket`: that of its bytes, and of its lake."""

    name: QueueName
    servers: Servers
    view: View
    events: tuple[ConfigurationEvent, ...]
    reading: tuple[ViewConfiguration, ...]
    row_lifetime: timedelta
    cassandra: CassandraAccess
    s3: S3Access
    bucket: str


@asynccontextmanager
async def open_archived(url: str, settings: Settings, instead: str) -> AsyncIterator[ArchivedQueue]:
    """Open a queue with tables, by its URL. `instead`: what serves one without. Raises:
    InvalidQueueURL, InvalidQueueName, QueueNotFound, ServerError."""
    parts = urlsplit(url)
    check_parts(parts)
    if parts.scheme != "distributed":
        raise InvalidQueueURL(
            f"{url!r} has no tables for Spark, as distributed://NAMESPACE.NAME has: {instead}"
        )
    name = QueueName.parse(parts.netloc)
    servers = ClusterServers(settings)
    try:
        row_lifetime = await servers.views().row_lifetime()
        recorded = None if row_lifetime is None else await servers.history(name).load()
        if row_lifetime is None or recorded is None or not recorded.events:
            raise QueueNotFound(f"the queue {name} was never created")
        rollout = recorded.rollout or first_rollout(recorded.events)
        bucket = settings.s3.bucket or name.bucket(settings.s3.bucket_prefix)
        if not await servers.blobs(bucket).exists():
            raise BlobsRefused(f"the bucket {bucket} of the queue {name} is missing")
        yield ArchivedQueue(
            name=name,
            servers=servers,
            view=servers.views().view(str(name)),
            events=tuple(recorded.events),
            reading=tuple(writing_and_reading(recorded.events, rollout)[1]),
            row_lifetime=row_lifetime,
            cassandra=cassandra_access(settings),
            s3=s3_access(settings),
            bucket=bucket,
        )
    finally:
        await servers.close()


def list_keys(bucket: str, ranges: Sequence[tuple[str, str, str | None]]) -> list[str]:
    """Return the keys of a bucket in some ranges: those with a prefix, after one key, and up to
    another (None: all). For processes that Spark starts: the environment names the store. Raises:
    InvalidSettings, ServerError."""
    return asyncio.run(_list_keys(bucket, ranges))


async def _list_keys(bucket: str, ranges: Sequence[tuple[str, str, str | None]]) -> list[str]:
    servers = ClusterServers(from_environment())
    try:
        found: list[str] = []
        for prefix, after, through in ranges:
            async for key in servers.blobs(bucket).keys(prefix, after):
                if through is not None and key > through:
                    break
                found.append(key)
        return found
    finally:
        await servers.close()


def change_entries(
    url: str, change: EntryChange, selector: Selector, keys: Sequence[EntryKey]
) -> int:
    """Open a queue of the distributed engine, and let it change the selected mails that wait under
    these entries; return how many. For processes that Spark starts: the environment names the
    servers. Raises: ServerError, ClockSkew, ConfigurationStale."""
    return asyncio.run(_change_entries(url, change, selector, keys))


async def _change_entries(
    url: str, change: EntryChange, selector: Selector, keys: Sequence[EntryKey]
) -> int:
    async with open_queue(url) as queue:
        assert isinstance(queue, DistributedQueue)
        return await queue.change_found(change, keys, selector)
