"""Single objects, through obstore: the hot path of every mail.

A request costs a quarter of boto3's CPU and no thread of ours (ADR 0010). Whatever is rare and rich
in options (buckets, listings, uploads in parts) stays with boto3.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from postroad.adapters.s3.access import Access
from postroad.adapters.s3.codes import error_of
from postroad.errors import BlobMissing, CredentialsRefused, PostroadError

CHUNK_BYTES = 1 << 20

SILENCE = timedelta(seconds=8)
"""How long a store may send nothing before it counts as away."""

TRANSFER = timedelta(minutes=10)
"""How long one transfer may take as long as something comes."""

SLOWEST = 32 << 10
"""Bytes a second. What is uploaded more slowly counts as stuck."""

FAILURES = (BaseError, OSError)
"""A missing object is raised as the built-in FileNotFoundError."""

_CODE = re.compile(r"<Code>(\w+)</Code>")
_LACKING = {"NotImplemented", "MethodNotAllowed"}
"""What a store says that cannot delete many at once."""


def patience(size_bytes: int) -> timedelta:
    """Return how long the upload of so much may take. While a request is sent nothing comes back,
    so a store's silence says nothing before a slow line had the time it needs."""
    return 2 * SILENCE + timedelta(seconds=size_bytes / SLOWEST)


class Objects:
    """The objects of one bucket. Safe to use concurrently."""

    def __init__(self, access: Access, bucket: str) -> None:
        self._reading = _opened(access, bucket, {"read_timeout": SILENCE})
        self._writing = _opened(access, bucket, {})

    async def put(self, key: str, body: bytes) -> None:
        """Store one object in one request. Raises: BlobsError, CredentialsRefused."""
        try:
            async with asyncio.timeout(patience(len(body)).total_seconds()):
                await obstore.put_async(self._writing, key, body, use_multipart=False)
        except FAILURES as error:
            raise translated(error) from error

    async def get(self, key: str, first: int, length: int | None) -> bytes:
        """Return a range, or from `first` to the end. Errors as `put`, and BlobMissing."""
        try:
            if length is not None:
                part = await obstore.get_range_async(self._reading, key, start=first, length=length)
                return bytes(part)
            options = {"range": {"offset": first}} if first else {}
            answer = await obstore.get_async(self._reading, key, options=options)  # type: ignore[arg-type]
            return bytes(await answer.bytes_async())
        except FAILURES as error:
            raise translated(error) from error

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        """Yield the object in chunks of at most CHUNK_BYTES. Errors as `get`."""
        try:
            answer = await obstore.get_async(self._reading, key)
            async for chunk in answer.stream(min_chunk_size=CHUNK_BYTES // 4):
                whole = bytes(chunk)
                for start in range(0, len(whole), CHUNK_BYTES):
                    yield whole[start : start + CHUNK_BYTES]
        except FAILURES as error:
            raise translated(error) from error

    async def delete(self, key: str) -> None:
        """Delete an object; a missing one is fine. Errors as `put`."""
        try:
            await obstore.delete_async(self._reading, key)
        except FAILURES as error:
            failed = translated(error)
            if not isinstance(failed, BlobMissing):
                raise failed from error

    async def delete_together(self, keys: Sequence[str]) -> None:
        """Delete many objects, a thousand a request; missing ones are fine. Errors as `put`, which
        leave open how many are deleted."""
        try:
            await obstore.delete_async(self._reading, list(keys))
        except FAILURES as error:
            failed, found = translated(error), _CODE.search(str(error))
            is_lacking = found is not None and found[1] in _LACKING
            if not is_lacking and not isinstance(failed, BlobMissing):
                raise failed from error
            for key in keys:
                await self.delete(key)


def _opened(access: Access, bucket: str, timeouts: dict[str, object]) -> S3Store:
    options: dict[str, object] = {
        "connect_timeout": timedelta(seconds=3),
        "timeout": TRANSFER,
        **timeouts,
        "allow_http": (access.endpoint or "").startswith("http://"),
    }
    if access.ca_file is not None:
        options["root_certificate"] = access.ca_file.read_bytes()
    return S3Store(
        bucket,
        region=access.region,
        client_options=options,  # type: ignore[arg-type]
        retry_config={"max_retries": 1, "retry_timeout": 2 * SILENCE},
        virtual_hosted_style_request=access.endpoint is None,
        **access.identity,  # type: ignore[arg-type]
    )


def translated(error: Exception) -> PostroadError:
    """Return our error for one of obstore's, by S3's code where there is one."""
    found = _CODE.search(str(error))
    if found is not None:
        return error_of(found[1])
    # A 404 without S3's own code is not the store's word about the object: a proxy in between may
    # have said it, and a mail must not be given up for that.
    if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
        return CredentialsRefused("the object store refused the credentials")
    return error_of("", type(error).__name__)
