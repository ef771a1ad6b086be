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
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from postroad.adapters.s3.access import Access
from postroad.adapters.s3.codes import LATER, error_of
from postroad.errors import BlobMissing, CredentialsRefused, PostroadError
from postroad.tls import authorities, refusal

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
_STATUS = re.compile(r"status code: (\d+)")
_LATER_STATUS = {408, 429, 502, 503, 504}
_LACKING = {"NotImplemented", "MethodNotAllowed", "501", "405"}
"""What a store says that does not know a request: deleting many at once, or a condition."""

_OF_A_KEY = ("request failed for key", "invalid DeleteObjects response")
"""How obstore begins when the store answered, but not that all is deleted."""

SINGLY = 16
"""Deletions at the same time, where they cannot go together."""


def timeout_of(size_bytes: int) -> timedelta:
    """Return how long the upload of so much may take. While a request is sent nothing comes back,
    so a store's silence says nothing before a slow line had the time it needs."""
    return 2 * SILENCE + timedelta(seconds=size_bytes / SLOWEST)


class Objects:
    """The objects of one bucket. Safe to use concurrently."""

    def __init__(self, access: Access, bucket: str) -> None:
        self._reading = _opened(access, bucket, {"read_timeout": SILENCE})
        self._writing = _opened(access, bucket, {})
        # Else obstore says even a lone deletion by the request for many, which not all stores know.
        self._singly = _opened(access, bucket, {"read_timeout": SILENCE}, disable_bulk_delete=True)
        self._deletes_many = True

    async def put(self, key: str, body: bytes) -> None:
        """Store one object in one request. Raises: BlobsError, CredentialsRefused."""
        try:
            async with asyncio.timeout(timeout_of(len(body)).total_seconds()):
                await obstore.put_async(self._writing, key, body, use_multipart=False)
        except FAILURES as error:
            raise translated(error) from error

    async def put_new(self, key: str, body: bytes) -> None:
        """Store one object unless there is one. Errors as `put`."""
        try:
            async with asyncio.timeout(timeout_of(len(body)).total_seconds()):
                await obstore.put_async(
                    self._writing, key, body, mode="create", use_multipart=False
                )
        except AlreadyExistsError:
            return
        except FAILURES as error:
            if _answer_of(error) not in _LACKING:
                raise translated(error) from error
            await self.put(key, body)

    async def get(self, key: str) -> bytes:
        """Return the whole object. Errors as `put`, and BlobMissing."""
        try:
            answer = await obstore.get_async(self._reading, key)
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
            await obstore.delete_async(self._singly, key)
        except FAILURES as error:
            failed = translated(error)
            if not isinstance(failed, BlobMissing):
                raise failed from error

    async def delete_together(self, keys: Sequence[str]) -> list[PostroadError | None]:
        """Delete many objects, a thousand a request; missing ones are fine. Return for each key
        what keeps it from being deleted, which says nothing about the others. Raises what would
        meet each of them: BlobsUnavailable, which leaves open how many are deleted."""
        if self._deletes_many:
            try:
                await obstore.delete_async(self._reading, list(keys))
            except FAILURES as error:
                if _is_later(error):
                    raise translated(error) from error
                self._deletes_many = _answer_of(error) not in _LACKING
            else:
                return [None] * len(keys)
        return await self._delete_singly(keys)

    async def _delete_singly(self, keys: Sequence[str]) -> list[PostroadError | None]:
        slots = asyncio.Semaphore(SINGLY)

        async def delete(key: str) -> PostroadError | None:
            async with slots:
                try:
                    await self.delete(key)
                except PostroadError as error:
                    return error
            return None

        return await asyncio.gather(*map(delete, keys))


def _opened(
    access: Access, bucket: str, timeouts: dict[str, object], *, disable_bulk_delete: bool = False
) -> S3Store:
    options: dict[str, object] = {
        "connect_timeout": timedelta(seconds=3),
        "timeout": TRANSFER,
        **timeouts,
        "allow_http": (access.endpoint or "").startswith("http://"),
    }
    if access.ca_file is not None:
        options["root_certificate"] = authorities(access.ca_file)
    return S3Store(
        bucket,
        region=access.region,
        client_options=options,  # type: ignore[arg-type]
        retry_config={"max_retries": 1, "retry_timeout": 2 * SILENCE},
        virtual_hosted_style_request=access.endpoint is None,
        disable_bulk_delete=disable_bulk_delete,
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
    refused = refusal("the object store", str(error))
    return refused or error_of("", type(error).__name__)


def _answer_of(error: Exception) -> str:
    """Return the code or else the status with which a whole request was refused."""
    found = _CODE.search(str(error)) or _STATUS.search(str(error))
    return found[1] if found is not None else ""


def _is_later(error: Exception) -> bool:
    """Return whether the store was out of reach or asked to be spared, so that single requests
    would fare no better."""
    said, answer = str(error), _answer_of(error)
    if answer.isdigit():
        return int(answer) in _LATER_STATUS
    return answer in LATER if answer else not any(each in said for each in _OF_A_KEY)
