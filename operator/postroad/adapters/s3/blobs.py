"""`Blobs` over one bucket of an S3 store."""

from __future__ import annotations

from collections.abc import AsyncIterator

from postroad.adapters.s3 import buckets
from postroad.adapters.s3.store import Store
from postroad.adapters.s3.uploads import upload
from postroad.domain.mail import Content
from postroad.ports.blobs import Stored


class S3Blobs:
    """The objects of one bucket. Cheap to make; the store is shared and closed by its owner."""

    def __init__(self, store: Store, bucket: str) -> None:
        self._store = store
        self._bucket = bucket
        self._objects = store.objects(bucket)

    async def put(self, key: str, content: Content, limit_bytes: int | None = None) -> Stored:
        return await upload(self._store, self._objects, self._bucket, key, content, limit_bytes)

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        return b"" if length == 0 else await self._objects.get(key, first, length)

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        async for chunk in self._objects.stream(key):
            yield chunk

    async def delete(self, key: str) -> None:
        await self._objects.delete(key)

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        async for page in buckets.pages(self._store, self._bucket, prefix):
            for key in page:
                yield key

    async def create(self) -> tuple[str, ...]:
        return await buckets.create(self._store, self._bucket)

    async def exists(self) -> bool:
        return await buckets.exists(self._store, self._bucket)

    async def drop(self, prefix: str = "", *, bucket: bool = True) -> int:
        count = await buckets.empty(self._store, self._bucket, prefix)
        if bucket:
            await buckets.delete(self._store, self._bucket)
        return count

    async def close(self) -> None:
        """Nothing of its own to release: the store is its owner's."""
