"""Translates S3's error codes into postroad's errors, for both drivers."""

from __future__ import annotations

from postroad.errors import (
    CREATE,
    BlobMissing,
    BlobsRefused,
    BlobsUnavailable,
    CredentialsRefused,
    PostroadError,
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
    is HTTP's. An unforeseen code counts as transient."""
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
