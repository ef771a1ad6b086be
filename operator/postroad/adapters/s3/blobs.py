"""`Blobs` over one bucket of an S3 store.

Uploads content of any size with little memory.

Content of one part goes in one request; longer content goes part by part, and an error aborts the
upload, so that a key never shows a part of a mail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from postroad.adapters.s3 import buckets
from postroad.adapters.s3.clients import SILENCE
from postroad.adapters.s3.objects import Objects, timeout_of
from postroad.adapters.s3.store import Store
from postroad.batching import Batcher
from postroad.contents import chunks_of
from postroad.domain.mail.mail import Content
from postroad.domain.mail.shapes import Scanner
from postroad.errors import BlobsUnavailable, MailTooLarge, PostroadError, ServerError
from postroad.ports.blobs import Stored

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef


PART_BYTES = 5 << 20
"""Size of a part; S3 allows no smaller one but the last, and at most 10,000 (here 48 GiB). Small,
because the timeout of a stuck upload grows with it."""


async def upload(
    store: Store,
    objects: Objects,
    bucket: str,
    key: str,
    content: Content,
    limit_bytes: int | None,
) -> Stored:
    """Put content under a key. Raises: MailTooLarge, BlobsError."""
    scanner = Scanner()
    parts = _scanned(_parts(content), scanner)
    first = await anext(parts, b"")
    _check(len(first), limit_bytes)
    if len(first) < PART_BYTES:
        await objects.put(key, first)
        size = len(first)
    else:
        size = await _Multipart(store, bucket, key).send(first, parts, limit_bytes)
    return Stored(size, scanner.end())


class _Multipart:
    def __init__(self, store: Store, bucket: str, key: str) -> None:
        self._store = store
        self._bucket = bucket
        self._key = key
        self._id = ""

    async def send(self, first: bytes, rest: AsyncIterator[bytes], limit: int | None) -> int:
        bucket, key = self._bucket, self._key
        begun = await self._store(lambda c: c.create_multipart_upload(Bucket=bucket, Key=key))
        self._id = begun["UploadId"]
        try:
            size = len(first)
            done = [await self._part(1, first)]
            async for part in rest:
                size += len(part)
                _check(size, limit)
                done.append(await self._part(len(done) + 1, part))
            await self._store(
                lambda client: client.complete_multipart_upload(
                    Bucket=bucket, Key=key, UploadId=self._id, MultipartUpload={"Parts": done}
                ),
                timeout_of(PART_BYTES),  # some stores join the parts in this request
            )
        except BaseException:
            await asyncio.shield(self._abort())
            raise
        return size

    async def _part(self, number: int, body: bytes) -> CompletedPartTypeDef:
        bucket, key = self._bucket, self._key
        answer = await self._store(
            lambda client: client.upload_part(
                Bucket=bucket, Key=key, UploadId=self._id, PartNumber=number, Body=body
            ),
            timeout_of(PART_BYTES),
        )
        return {"PartNumber": number, "ETag": answer["ETag"]}

    async def _abort(self) -> None:
        bucket, key = self._bucket, self._key
        try:
            await self._store(
                lambda client: client.abort_multipart_upload(
                    Bucket=bucket, Key=key, UploadId=self._id
                )
            )
        except ServerError:
            # The caller gets the first error; the bucket's lifecycle, or the audit, removes the
            # parts.
            pass


async def _parts(content: Content) -> AsyncIterator[bytes]:
    """Yield the content in parts of exactly PART_BYTES, the last one shorter."""
    if isinstance(content, bytes):
        for first in range(0, len(content), PART_BYTES):
            yield content[first : first + PART_BYTES]
        return
    gathered = bytearray()
    async for chunk in chunks_of(content, PART_BYTES):
        gathered += chunk
        while len(gathered) >= PART_BYTES:
            yield bytes(gathered[:PART_BYTES])
            del gathered[:PART_BYTES]
    if gathered:
        yield bytes(gathered)


async def _scanned(parts: AsyncIterator[bytes], scanner: Scanner) -> AsyncIterator[bytes]:
    async for part in parts:
        scanner.feed(part)
        yield part


def _check(size: int, limit_bytes: int | None) -> None:
    if limit_bytes is not None and size > limit_bytes:
        raise MailTooLarge(f"the mail is larger than {limit_bytes} octets")


MAX_TOGETHER = 100
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
            most=MAX_TOGETHER,
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
        async for count in buckets.empty(self._store, self._bucket, prefix):
            yield count

    async def drop(self, prefix: str = "", *, bucket: bool = True) -> int:
        count = sum([each async for each in self.empty(prefix)])
        if not (bucket and await buckets.delete(self._store, self._bucket)):
            await buckets.require_empty(self._store, self._bucket, prefix)
        return count

    async def close(self) -> None:
        """Nothing to release: the owner of the store closes it."""
