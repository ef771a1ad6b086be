"""A queue to be archived, without opening it: its view, and what Spark needs to read its tables and
to write its lake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from postroad.adapters.cassandra.access import Access as CassandraAccess
from postroad.adapters.s3.access import Access as S3Access
from postroad.bootstrap.cluster import ClusterServers, cassandra_access, s3_access
from postroad.bootstrap.open_request import check_parts
from postroad.domain.configuration.history import ConfigurationEvent
from postroad.domain.names import QueueName
from postroad.errors import BlobsRefused, InvalidQueueURL, QueueNotFound
from postroad.ports.view import View
from postroad.settings import Settings


@dataclass(frozen=True, slots=True)
class ArchivedQueue:
    """`events`: its configuration history. `bucket`: that of its bytes, and of its lake."""

    name: QueueName
    view: View
    events: tuple[ConfigurationEvent, ...]
    row_lifetime: timedelta
    cassandra: CassandraAccess
    s3: S3Access
    bucket: str


@asynccontextmanager
async def open_archived(url: str, settings: Settings) -> AsyncIterator[ArchivedQueue]:
    """Open a queue to be archived, by its URL. Raises: InvalidQueueURL, InvalidQueueName,
    QueueNotFound, ServerError."""
    parts = urlsplit(url)
    check_parts(parts)
    if parts.scheme != "distributed":
        raise InvalidQueueURL(f"{url!r} has no tables: distributed://NAMESPACE.NAME is archived")
    name = QueueName.parse(parts.netloc)
    servers = ClusterServers(settings)
    try:
        row_lifetime = await servers.views().row_lifetime()
        events = () if row_lifetime is None else (await servers.history(name).load()).events
        if row_lifetime is None or not events:
            raise QueueNotFound(f"the queue {name} was never created")
        bucket = settings.s3.bucket or name.bucket(settings.s3.bucket_prefix)
        if not await servers.blobs(bucket).exists():
            raise BlobsRefused(f"the bucket {bucket} of the queue {name} is missing")
        yield ArchivedQueue(
            name=name,
            view=servers.views().view(str(name)),
            events=events,
            row_lifetime=row_lifetime,
            cassandra=cassandra_access(settings),
            s3=s3_access(settings),
            bucket=bucket,
        )
    finally:
        await servers.close()
