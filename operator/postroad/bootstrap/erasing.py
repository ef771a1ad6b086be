"""A queue to be erased, created or not, without opening it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from postroad.bootstrap.open_request import check_parts
from postroad.distributed.maintenance.erasure import Erasable, Part
from postroad.domain.queues.names import BUCKET_CLAIM, QueueName
from postroad.errors import InvalidQueueURL
from postroad.ports.blobs import Blobs
from postroad.ports.servers import Servers
from postroad.settings import Settings, from_environment


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
    parts = urlsplit(url)
    check_parts(parts)
    servers: Servers
    shared: str | None = None
    if parts.scheme == "memory":
        from postroad.bootstrap import memory

        servers, name = memory.connect(), QueueName("memory", parts.netloc)
        bucket = name.bucket("")
    elif parts.scheme == "distributed":
        from postroad.bootstrap import cluster

        given = settings or from_environment()
        servers, name = cluster.connect(given), QueueName.parse(parts.netloc)
        shared = given.s3.bucket
        bucket = shared or name.bucket(given.s3.bucket_prefix)
    else:
        raise InvalidQueueURL(f"{url!r} has no servers that it could be erased on")
    try:
        yield Erasable(
            name=name,
            broker=servers.broker(name),
            view=servers.views().view(str(name)),
            history=servers.history(name),
            blobs=servers.blobs(bucket),
            claims=Unclaimed(servers.blobs(bucket), owns=shared is None),
        )
    finally:
        await servers.close()
