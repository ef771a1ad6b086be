"""`Blobs` over one bucket of an S3 store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from postroad.adapters.s3 import buckets, emptying
from postroad.adapters.s3.clients import SILENCE
from postroad.adapters.s3.objects import Objects
from postroad.adapters.s3.store import Store
from postroad.adapters.s3.uploads import upload
from postroad.batching import Batcher
from postroad.domain.mail.mail import Content
from postroad.errors import BlobsUnavailable, PostroadError
from postroad.ports.blobs import Stored

MOST_TOGETHER = 100
"""Objects in one request; S3 allows a thousand, but the mails of one request wait for each
other."""


class S3Blobs:
    """The objects of one bucket. Cheap to create; the owner of the shared store closes it."""

    def __init__(self, store: Store, bucket: str) -> None:
        self._store = store
        self._bucket = bucket
        self._deleting: Batcher[None, str, PostroadError | None] = Batcher(
            self._delete_batch,
            lambda: BlobsUnavailable("the object store did not answer others in time"),
            most=MOST_TOGETHER,
            max_wait=SILENCE,
        )

    @property
    def _objects(self) -> Objects:
        return self._store.objects(self._bucket)

    async def put(self, key: str, content: Content, limit_bytes: int | None = None) -> Stored:
        return await upload(self._store, self._objects, self._bucket, key, content, limit_bytes)

    async def put_new(self, key: str, body: bytes) -> None:
        await self._objects.put_new(key, body)

    async def get(self, key: str) -> bytes:
        return await self._objects.get(key)

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        async for chunk in self._objects.stream(key):
            yield chunk

    async def delete(self, key: str) -> None:
        error = await self._deleting(None, key)
        if error is not None:
            raise error

    async def delete_together(self, keys: Sequence[str]) -> None:
        for error in await self._objects.delete_together(keys):
            if error is not None:
                raise error

    async def _delete_batch(self, _: None, keys: list[str]) -> Sequence[PostroadError | None]:
        if len(keys) > 1:
            return await self._objects.delete_together(keys)
        await self._objects.delete(keys[0])
        return [None]

    async def keys(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        async for page in buckets.pages(self._store, self._bucket, prefix, after):
            for key in page:
                yield key

    async def create(self, prefix: str = "", *, first: bool = False) -> tuple[str, ...]:
        return await buckets.create(self._store, self._bucket, prefix, first=first)

    async def exists(self) -> bool:
        return await buckets.exists(self._store, self._bucket)

    async def empty(self, prefix: str) -> AsyncIterator[int]:
        async for count in emptying.empty(self._store, self._bucket, prefix):
            yield count

    async def drop(self, prefix: str = "", *, bucket: bool = True) -> int:
        count = sum([each async for each in self.empty(prefix)])
        if not (bucket and await emptying.delete(self._store, self._bucket)):
            await emptying.require_empty(self._store, self._bucket, prefix)
        return count

    async def close(self) -> None:
        """Nothing to release: the owner of the store closes it."""
