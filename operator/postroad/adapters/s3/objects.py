"""Single objects, through obstore: the hot path of every mail.

A request costs a quarter of boto3's CPU and no Python thread (ADR 0010). Rare requests with many
options (buckets, listings, uploads in parts) go through boto3."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Literal

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from postroad.adapters.s3.clients import LATER, SILENCE, Access, ObjectClients, error_of
from postroad.errors import BlobMissing, CredentialsRefused, PostroadError
from postroad.ports.servers import Guard
from postroad.tls import refusal

CHUNK_BYTES = 1 << 20

SLOWEST = 32 << 10
"""Bytes a second. A slower upload counts as stuck."""

FAILURES = (BaseError, OSError)
"""OSError, because obstore raises FileNotFoundError for a missing object."""

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d+)")
_LATER_STATUS = {408, 429, 502, 503, 504}
_LACKING = {"NotImplemented", "MethodNotAllowed", "501", "405"}
"""Answers of a store without DeleteObjects, or without conditional writes."""

_OF_A_KEY = ("request failed for key", "invalid DeleteObjects response")
"""obstore's errors where the store answered that it did not delete all."""

SINGLY = 16
"""Concurrent deletions where one request cannot have many."""


def timeout_of(size_bytes: int) -> timedelta:
    """Return how long an upload of this size may take. A store sends nothing before it has the
    whole request, so its silence counts only after the time that a slow line needs."""
    return 2 * SILENCE + timedelta(seconds=size_bytes / SLOWEST)


class Objects:
    """The objects of one bucket. Safe to use concurrently. `guard` is asked before each write.
    `shared`: the clients of all buckets; None: the bucket has its own."""

    def __init__(
        self,
        access: Access,
        bucket: str,
        guard: Guard | None = None,
        shared: ObjectClients | None = None,
    ) -> None:
        """Open nothing yet. Raises: TlsRefused."""
        self._own = ObjectClients(access, bucket)
        self._clients = shared or self._own
        self._start = f"{bucket}/" if shared else ""
        self._guard = guard or _no_guard
        self._deletes_many = True

    async def put(self, key: str, body: bytes) -> None:
        """Store one object in one request. Raises: BlobsError, CredentialsRefused."""
        try:
            await self._send(key, body, "overwrite")
        except FAILURES as error:
            raise translated(error) from error

    async def put_new(self, key: str, body: bytes) -> None:
        """Store one object unless the key has one. Errors as `put`."""
        try:
            await self._send(key, body, "create")
        except FAILURES as error:
            if _answer_of(error) in _LACKING:
                await self.put(key, body)
            elif not isinstance(error, AlreadyExistsError) or _is_conflict(error):
                raise translated(error) from error

    async def _send(self, key: str, body: bytes, mode: Literal["create", "overwrite"]) -> None:
        """Upload in one request, once more where a concurrent request was in its way."""
        async with asyncio.timeout(timeout_of(len(body)).total_seconds()):
            for last in (False, True):
                self._guard()
                try:
                    await obstore.put_async(
                        self._clients.writing,
                        self._start + key,
                        body,
                        mode=mode,
                        use_multipart=False,
                    )
                except AlreadyExistsError as error:
                    if last or not _is_conflict(error):
                        raise
                else:
                    return

    async def get(self, key: str) -> bytes:
        """Return the whole object. Errors as `put`, and BlobMissing."""
        try:
            answer = await obstore.get_async(self._clients.reading, self._start + key)
            return bytes(await answer.bytes_async())
        except FAILURES as error:
            raise translated(error) from error

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        """Yield the object in chunks of at most CHUNK_BYTES. Errors as `get`."""
        try:
            answer = await obstore.get_async(self._clients.reading, self._start + key)
            async for chunk in answer.stream(min_chunk_size=CHUNK_BYTES // 4):
                whole = bytes(chunk)
                for start in range(0, len(whole), CHUNK_BYTES):
                    yield whole[start : start + CHUNK_BYTES]
        except FAILURES as error:
            raise translated(error) from error

    async def delete(self, key: str) -> None:
        """Delete an object. Idempotent. Errors as `put`."""
        self._guard()
        try:
            await obstore.delete_async(self._clients.deleting, self._start + key)
        except FAILURES as error:
            failed = translated(error)
            if not isinstance(failed, BlobMissing):
                raise failed from error

    async def delete_together(self, keys: Sequence[str]) -> list[PostroadError | None]:
        """Delete many objects, a thousand a request; missing ones are no error. Return for each key
        its error, or None. Raises: BlobsUnavailable for all keys; some may be deleted."""
        if self._deletes_many:
            self._guard()
            try:
                await obstore.delete_async(self._own.reading, list(keys))
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


def _no_guard() -> None:
    """Let every request out."""


def translated(error: Exception) -> PostroadError:
    """Return postroad's error for one of obstore's, by S3's code where there is one."""
    found = _CODE.search(str(error))
    if found is not None:
        return error_of(found[1])
    # A 404 without S3's own code is transient: it may come from a proxy, and must not end a mail.
    if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
        return CredentialsRefused("the object store refused the credentials")
    refused = refusal("the object store", str(error))
    return refused or error_of("", type(error).__name__)


def _answer_of(error: Exception) -> str:
    """Return the code, or else the status, with which the store refused a whole request."""
    found = _CODE.search(str(error)) or _STATUS.search(str(error))
    return found[1] if found is not None else ""


def _is_conflict(error: Exception) -> bool:
    """Return whether a concurrent request was in the way. obstore raises AlreadyExistsError for it,
    too, although no object need be there."""
    found = _STATUS.search(str(error))
    return found is not None and found[1] == "409"


def _is_later(error: Exception) -> bool:
    """Return whether the store is away or refuses for now, so that single requests would too."""
    text, answer = str(error), _answer_of(error)
    if answer.isdigit():
        return int(answer) in _LATER_STATUS
    return answer in LATER if answer else not any(each in text for each in _OF_A_KEY)
