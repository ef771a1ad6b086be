"""A bucket in memory."""

from collections.abc import AsyncIterator, Sequence

from postroad.adapters.memory.steps import ProcessSteps, step
from postroad.contents import chunks_of
from postroad.domain.mail.mail import Content
from postroad.domain.mail.shapes import shape_of
from postroad.errors import BlobMissing, BlobsRefused, BlobsUnavailable, MailTooLarge
from postroad.ports.blobs import Stored

CHUNK = 1 << 20
PAGE = 3
"""Keys of a page: small, so that every test pages."""


class Bucket:
    """The objects of a bucket, shared by all processes."""

    def __init__(self) -> None:
        self.is_created = False
        self.objects: dict[str, bytes] = {}
        self.is_of_another_account = False
        self.limits: tuple[str, ...] = ()
        self.keeps_versions = False
        """Versions of its objects stay, because the account may not delete them."""


class MemoryBlobs:
    """`Blobs` over one `Bucket`."""

    def __init__(self, bucket: Bucket, steps: ProcessSteps) -> None:
        self._bucket = bucket
        self.steps = steps

    async def put(self, key: str, content: Content, limit_bytes: int | None = None) -> Stored:
        body = await _read(content, limit_bytes)
        shape = shape_of((body,))

        def effect() -> Stored:
            if not self._bucket.is_created:
                raise BlobsUnavailable("the bucket does not exist")
            self._bucket.objects[key] = body
            return Stored(len(body), shape)

        return await self.steps("blobs", "put", effect)

    @step("blobs")
    def put_new(self, key: str, body: bytes) -> None:
        if not self._bucket.is_created:
            raise BlobsUnavailable("the bucket does not exist")
        self._bucket.objects.setdefault(key, body)

    @step("blobs")
    def get(self, key: str) -> bytes:
        if key not in self._bucket.objects:
            raise BlobMissing(f"there is no object {key}")
        return self._bucket.objects[key]

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        body = await self.get(key)
        for first in range(0, len(body), CHUNK):
            yield body[first : first + CHUNK]

    async def delete(self, key: str) -> None:
        await self.steps("blobs", "delete", lambda: self._bucket.objects.pop(key, None))

    async def delete_together(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self.delete(key)

    async def keys(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        def page() -> list[str]:
            wanted = (key for key in self._bucket.objects if key.startswith(prefix) and key > after)
            return sorted(wanted)[:PAGE]

        while found := await self.steps("blobs", "keys", page):
            for key in found:
                yield key
            after = found[-1]

    @step("blobs")
    def create(self, prefix: str = "", *, first: bool = False) -> tuple[str, ...]:
        if first and self._bucket.is_of_another_account:
            raise BlobsRefused("the name of the bucket is taken by another account")
        self._bucket.is_created = True
        return self._bucket.limits

    async def exists(self) -> bool:
        return await self.steps("blobs", "exists", lambda: self._bucket.is_created)

    async def empty(self, prefix: str) -> AsyncIterator[int]:
        def effect() -> int:
            doomed = sorted(key for key in self._bucket.objects if key.startswith(prefix))[:PAGE]
            for key in doomed:
                del self._bucket.objects[key]
            return len(doomed)

        while count := await self.steps("blobs", "empty", effect):
            yield count

    async def drop(self, prefix: str = "", *, bucket: bool = True) -> int:
        count = sum([each async for each in self.empty(prefix)])

        def effect() -> None:
            if self._bucket.keeps_versions:
                raise BlobsRefused("the bucket keeps versions of the deleted objects")
            if bucket and not self._bucket.objects:
                self._bucket.is_created = False

        await self.steps("blobs", "drop", effect)
        return count

    async def close(self) -> None:
        """Nothing to release."""


async def _read(content: Content, limit_bytes: int | None) -> bytes:
    read = bytearray()  # bytes would be copied whole for each chunk
    async for chunk in chunks_of(content, CHUNK):
        read += chunk
        _check(read, limit_bytes)
    return bytes(read)


def _check(body: bytes | bytearray, limit_bytes: int | None) -> None:
    if limit_bytes is not None and len(body) > limit_bytes:
        raise MailTooLarge(f"the mail is larger than {limit_bytes} octets")
