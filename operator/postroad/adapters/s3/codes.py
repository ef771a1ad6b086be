"""What S3's error codes mean for us, whichever driver saw them."""

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
"""What a store says that can do it, but not now."""

_LATER_STATUS = {404, 408, 409, 429}
"""A 404 without S3's own code may be a proxy's word: a mail must not be given up for that. A 409
says that another request was in the way: versitygw answers so (`ExistingObjectIsDirectory`) to an
upload whose parent folder a deletion removes at that moment."""


def error_of(code: str, said: str = "", status: int = 500) -> PostroadError:
    """Return our error for a code. `said` stands in where there is none; `status` is HTTP's. An
    unforeseen one counts as transient."""
    if code in _REFUSED_CREDENTIALS:
        return CredentialsRefused(f"the object store refused the credentials: {code}")
    if code in _MISSING:
        return BlobMissing("there is no such object")
    if code in _NO_BUCKET:
        return BlobsUnavailable(
            "the bucket does not exist",
            hint=f"the operator creates it; without one, {CREATE}",
        )
    if code not in LATER and 400 <= status < 500 and status not in _LATER_STATUS:
        return BlobsRefused(f"the object store refused the request: {code}")
    return BlobsUnavailable(f"the object store did not answer as it should: {code or said}")
