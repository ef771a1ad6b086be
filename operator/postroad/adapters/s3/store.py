"""A boto3 client for asyncio, and its errors translated: for buckets, listings and parts.

boto3 blocks, so its calls run in a pool of threads, whose number bounds the requests in flight.
Every call ends within its timeouts and one repetition, also when the server hangs. Hazard: a call
whose waiter was cancelled goes on in its thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    NoCredentialsError,
)

from postroad.adapters.s3.clients import OPENING, Access, ObjectClients, error_of, open_client
from postroad.adapters.s3.objects import Objects
from postroad.errors import BlobsUnavailable, CredentialsRefused, PostroadError
from postroad.ports.servers import Guard
from postroad.tls import authorities, refusal

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

THREADS = 32
CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 3, 10, 2

OPEN_BUCKETS = 32
"""Buckets whose own clients are kept, the last used ones."""


class Store:
    """One S3 store, shared by all its buckets. `guard` is asked before each request leaves,
    repetitions included; of single objects, before each write."""

    def __init__(self, access: Access, guard: Guard | None = None) -> None:
        self._access = access
        self._guard = guard
        self._clients: dict[tuple[timedelta | None, str | None, str | None], S3Client] = {}
        self._objects: dict[str, Objects] = {}
        self._shared: ObjectClients | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="s3")
        self._is_closed = False
        self.lifecycles_from = 0.0
        """Until then, of `time.monotonic`, buckets have no lifecycle rules here."""

    async def __call__(self, work: Callable[[S3Client], T], timeout: timedelta | None = None) -> T:
        """Run `work` with the client in a thread. `timeout`: for sending a body, and again for its
        answer. Raises: BlobsError, CredentialsRefused."""
        if self._is_closed:
            raise BlobsUnavailable("the connection with S3 was closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._run, work, timeout)

    def objects(self, bucket: str) -> Objects:
        """Return the objects of a bucket, which share its connections. Ask again for each use: the
        connections of those that are kept elsewhere stay open."""
        found = self._objects.pop(bucket, None) or self._opened(bucket)
        self._objects[bucket] = found  # behind those that were used before
        if len(self._objects) > OPEN_BUCKETS:
            del self._objects[next(iter(self._objects))]
        return found

    def _opened(self, bucket: str) -> Objects:
        """Return the objects of a bucket, by the clients of all where these have one address."""
        access = self._access
        if self._shared is None and access.endpoint is not None:
            self._shared = ObjectClients(access, None)
        return Objects(access, bucket, self._guard, self._shared)

    async def check(self) -> str:
        """Return the name in the store's header `server`, because S3 has no request for a version.
        Raises: BlobsError, CredentialsRefused."""
        return await self(_name_of_server)

    def _run(self, work: Callable[[S3Client], T], timeout: timedelta | None) -> T:
        try:
            return work(self._client(timeout))
        except (ClientError, BotoCoreError, OSError) as error:
            raise translated(error) from error

    def _client(self, timeout: timedelta | None) -> S3Client:
        """Return the client with this timeout: a client of its own, because boto3's timeout for
        connecting is also the one for sending a body. Raises: CredentialsMissing."""
        known = timeout, *self._access.keys
        found = self._clients.get(known)
        if found is None:
            with OPENING:
                found = self._clients.get(known) or self._opened_client(*known)
                # Clients of earlier keys end with the calls that use them.
                kept = {key: each for key, each in self._clients.items() if key[1:] == known[1:]}
                self._clients = kept | {known: found}
        return found

    def _opened_client(
        self, timeout: timedelta | None, access_key: str | None, secret_key: str | None
    ) -> S3Client:
        access = self._access
        if access.ca_file is not None:
            authorities(access.ca_file)
        seconds = timeout and timeout.total_seconds()
        client = open_client(
            endpoint_url=access.endpoint,
            region_name=access.region,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            verify=str(access.ca_file) if access.ca_file else None,
            config=Config(
                # Else presigned URLs and some stores get version 2 signatures.
                signature_version="s3v4",
                s3={"addressing_style": "path" if access.endpoint else "auto"},
                max_pool_connections=THREADS,
                connect_timeout=seconds or CONNECT_SECONDS,
                read_timeout=seconds or READ_SECONDS,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                # Stores other than AWS lack the newer default checksums.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        if self._guard is not None:
            guard = self._guard
            client.meta.events.register("before-send.s3", lambda **_: guard())
        return client

    async def close(self) -> None:
        """Close idle connections; running calls end by themselves. Idempotent."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()


def _name_of_server(client: S3Client) -> str:
    try:
        headers = client.list_buckets()["ResponseMetadata"]["HTTPHeaders"]
    except ClientError as error:
        if code_of(error) != "AccessDenied":
            raise
        # The store knows the user, who may lack the right to list all buckets.
        headers = error.response["ResponseMetadata"]["HTTPHeaders"]
    return headers.get("server", "S3")


def code_of(error: BaseException) -> str:
    """Return S3's code of an error, or the empty string."""
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def translated(error: Exception) -> PostroadError:
    if isinstance(error, NoCredentialsError):
        return CredentialsRefused(f"the object store got no credentials: {error}")
    if (refused := refusal("the object store", str(error))) is not None:
        return refused
    if isinstance(error, ConnectionClosedError):
        return BlobsUnavailable(
            "the object store closed the connection",
            # Transient: a proxy without a store behind it causes the same error.
            hint="where the port is one for TLS, write https://",
        )
    status = 500
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    return error_of(code_of(error), str(error), status)
