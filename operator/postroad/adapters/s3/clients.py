"""obstore's clients, which send the requests of single objects.

The address and user of an object store.

Translates S3's error codes into postroad's errors, for both drivers.

boto3's model of S3, read once for all clients of the process.

A session of its own reads 1.3 MB of JSON for each client: 15 MB and 0.1 s of CPU, four fifths of
them for documentation. A Store of the operator opens its clients while a thousand MailQueues ask.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import boto3
import botocore.session
import urllib3.exceptions
from botocore.exceptions import ConnectionClosedError
from botocore.loaders import JSONFileLoader, Loader
from obstore.store import S3Store

from postroad.errors import (
    CREATE,
    BlobMissing,
    BlobsRefused,
    BlobsUnavailable,
    CredentialsRefused,
    PostroadError,
)
from postroad.logins import LoginFolder
from postroad.tls import authorities

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


ASKED_AGAIN = timedelta(seconds=60)
"""The life of keys from files, for obstore."""


@dataclass(frozen=True, slots=True)
class Access:
    """A store and its user. `endpoint` None: AWS by region. Its repr has no key."""

    endpoint: str | None
    region: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    login_folder: LoginFolder | None = None
    """Source from which the keys are read again for each request, instead of `access_key` and
    `secret_key`."""

    @property
    def keys(self) -> tuple[str | None, str | None]:
        """The access key and its secret as of now. Raises: CredentialsMissing."""
        if self.login_folder is None:
            return self.access_key, self.secret_key
        login = self.login_folder.read()
        return login.username, login.password

    @property
    def identity(self) -> dict[str, object]:
        """obstore's parameters for the store and the user; those without a value it finds as AWS's
        own tools do."""
        given = {
            "endpoint": self.endpoint and self.endpoint.rstrip("/"),
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "credential_provider": None if self.login_folder is None else self._renewed,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _renewed(self) -> dict[str, object]:
        """Return the keys in obstore's form. It asks again for those that expire soon."""
        access_key, secret_key = self.keys
        expires = datetime.now(UTC) + ASKED_AGAIN
        return {
            "access_key_id": access_key,
            "secret_access_key": secret_key,
            "token": None,
            "expires_at": expires,
        }


SILENCE = timedelta(seconds=8)
"""Time that a store may send nothing before it counts as away."""

TRANSFER = timedelta(minutes=10)
"""Time that one transfer may take while octets arrive."""

ANY = "any"
"""obstore needs a name for a bucket that is not in the address."""


class ObjectClients:
    """The clients of one bucket; `bucket` None: of all buckets at an endpoint, whose names then
    begin the keys. Each is opened at its first use, which takes 4 ms of CPU and 0.1 MB: obstore
    reads the system's certificates for it. An operator has a thousand buckets."""

    def __init__(self, access: Access, bucket: str | None) -> None:
        """Open nothing yet. Raises: TlsRefused."""
        self._access, self._bucket = access, bucket
        if access.ca_file is not None:
            authorities(access.ca_file)

    @cached_property
    def reading(self) -> S3Store:
        return self._opened({"read_timeout": SILENCE})

    @cached_property
    def writing(self) -> S3Store:
        return self._opened({})

    @cached_property
    def deleting(self) -> S3Store:
        """Else obstore sends DeleteObjects for a single deletion too, which some stores lack, and
        which goes to the address of a bucket."""
        return self._opened({"read_timeout": SILENCE}, disable_bulk_delete=True)

    def _opened(
        self, timeouts: Mapping[str, object], *, disable_bulk_delete: bool = False
    ) -> S3Store:
        access = self._access
        options: dict[str, object] = {
            "connect_timeout": timedelta(seconds=3),
            "timeout": TRANSFER,
            **timeouts,
            "allow_http": (access.endpoint or "").startswith("http://"),
        }
        if access.ca_file is not None:
            options["root_certificate"] = authorities(access.ca_file)
        return S3Store(
            self._bucket or ANY,
            region=access.region,
            client_options=options,  # type: ignore[arg-type]
            retry_config={"max_retries": 1, "retry_timeout": 2 * SILENCE},
            # obstore takes an endpoint for the address of the bucket, and adds keys alone.
            virtual_hosted_style_request=access.endpoint is None or self._bucket is None,
            disable_bulk_delete=disable_bulk_delete,
            **access.identity,  # type: ignore[arg-type]
        )


_REFUSED_CREDENTIALS = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AccessDenied",
    "403",
    "ExpiredToken",
    "InvalidToken",
    "AuthorizationHeaderMalformed",
}
_MISSING = {"NoSuchKey", "NotFound"}
_NO_BUCKET = {"NoSuchBucket"}
LATER = {
    "SlowDown",
    "RequestTimeout",
    "Throttling",
    "OperationAborted",
    "ServiceUnavailable",
    "InternalError",
}
"""Codes of a store that refuses for now."""

_TAKEN = {"BucketAlreadyExists"}

_LATER_STATUS = {404, 408, 409, 429}
"""Transient, too. A 404 without S3's own code may come from a proxy, and must not end a mail. A 409
means a concurrent request: versitygw answers so (`ExistingObjectIsDirectory`) to an upload whose
parent folder a deletion removes at that moment."""


def error_of(code: str, text: str = "", status: int = 500) -> PostroadError:
    """Return postroad's error for a code, or for the error's text where there is no code. `status`
    is HTTP's. An unexpected code counts as transient."""
    if code in _REFUSED_CREDENTIALS:
        return CredentialsRefused(f"the object store refused the credentials: {code}")
    if code in _MISSING:
        return BlobMissing("there is no such object")
    if code in _NO_BUCKET:
        return BlobsUnavailable(
            "the bucket does not exist",
            hint=f"the operator creates it, unless it is shared; without one, {CREATE}",
        )
    if code in _TAKEN:
        return taken()
    if code not in LATER and 400 <= status < 500 and status not in _LATER_STATUS:
        return BlobsRefused(f"the object store refused the request: {code}")
    return BlobsUnavailable(f"the object store did not answer as it should: {code or text}")


def taken() -> BlobsRefused:
    """Return the error about a bucket of another account."""
    return BlobsRefused(
        "the name of the bucket is taken by another account",
        hint="use a QueueCluster with another bucketPrefix, or share a bucket of yours by "
        "spec.blobs.bucket",
    )


OPENING = Lock()
"""Held by the thread that opens a client: botocore completes what it reads in place."""


class LeanFiles(JSONFileLoader):
    """Reads each file once, without the documentation in it."""

    @cache  # noqa: B019 - the only one is `_FILES`
    def load_file(self, file_path: str) -> Any:
        for suffix, opened in ((".json", open), (".json.gz", gzip.open)):
            path = Path(f"{file_path}{suffix}")
            if path.is_file():
                with opened(path, "rb") as file:
                    return json.load(file, object_pairs_hook=_lean)
        return None


def _lean(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """botocore reads some documentation, so that what is left out is an empty text."""
    read = {sys.intern(name): value for name, value in pairs}
    for name, value in read.items():
        if isinstance(value, str):
            read[name] = "" if name == "documentation" else sys.intern(value)
    return read


_FILES = LeanFiles()


def open_client(**options: Any) -> S3Client:
    """Return a client with these options of `boto3.session.Session.client`, of a session of its
    own: the credentials of another one are not its. Only with OPENING held."""
    session = botocore.session.Session()
    session.register_component("data_loader", Loader(file_loader=_FILES))
    client = boto3.session.Session(botocore_session=session).client("s3", **options)
    http: Any = client._endpoint.http_session  # type: ignore[attr-defined]
    http.send = _bounded(http.send)
    return client


MAX_ANSWER = 2 * 1024 * 1024
"""Octets of an answer that is no object: the list of the 10,000 buckets of an account has 1.5
million. botocore needs up to two seconds of CPU to parse so many."""


def _bounded(send: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the sending of botocore, which reads answers of any length whole: a store that a
    tenant names would end an operator of all. Raises: as botocore's; OSError."""

    def sent(request: Any) -> Any:
        is_object, request.stream_output = request.stream_output, True
        response = send(request)
        if not is_object or response.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            response._content = _read(response)
        return response

    return sent


def _read(response: Any) -> bytes:
    octets = bytearray()
    try:
        for chunk in response.raw.stream():
            octets += chunk
            if len(octets) > MAX_ANSWER:
                response.raw.close()
                raise OSError(f"the answer has more than {MAX_ANSWER} octets")
    except urllib3.exceptions.HTTPError as error:
        raise ConnectionClosedError(endpoint_url=response.url, error=error) from error
    return bytes(octets)
