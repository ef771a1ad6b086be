"""Creates and lists buckets, and sets their lifecycle.

Our only lifecycle rule aborts incomplete uploads. No rule may expire objects by age, because only
the view knows which ones a mail needs; one that does is reported.

Empties and deletes buckets, of which some keep the versions of deleted objects.

A deletion without a version leaves the bytes in a bucket with versioning, under a delete marker. So
there each version is deleted by its id. Where the account may not, the objects are deleted all the
same, and what stays is an error that names the rights."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from botocore.exceptions import ClientError

from postroad.adapters.s3.clients import error_of, taken
from postroad.adapters.s3.store import Store, code_of
from postroad.errors import BlobsRefused
from postroad.ports.blobs import OBJECTS_EXPIRE

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import LifecycleRuleTypeDef, ObjectIdentifierTypeDef


LIFECYCLE_UNSUPPORTED = "LifecycleUnsupported"
INCOMPLETE_DAYS = 2
"""Days until an incomplete upload is aborted: longer than any upload takes."""

OURS = "postroad-abort-incomplete-uploads"
UNSUPPORTED = {
    "NotImplemented",
    "MethodNotAllowed",
    "501",
    "MalformedXML",
    "InvalidArgument",
    "InvalidRequest",
    "UnsupportedOperation",
}
ABSENT = {"NotImplemented", "501"}
LOOK_AGAIN_SECONDS = 600.0
"""Time for which a store that answered that it has no lifecycle rules is not asked for those of
other buckets."""

FORBIDDEN = {"403", "AccessDenied", "Forbidden"}
GONE = {"NoSuchBucket", "404", "NotFound"}
TAKEN = "BucketAlreadyExists"
"""Of another account, or of this one: SeaweedFS has no other answer for one's own."""

UNMADE = {
    "IllegalLocationConstraintException",
    "InvalidLocationConstraint",
    "TooManyBuckets",
    *FORBIDDEN,
    *UNSUPPORTED,
}
"""Refusals of one more bucket, which say nothing about one that is there."""


async def create(
    store: Store, bucket: str, prefix: str = "", *, first: bool = False
) -> tuple[str, ...]:
    """Create the bucket if it is missing, and set its lifecycle; return the names of features that
    the store lacks, and OBJECTS_EXPIRE for rules that delete objects with this prefix. `first`:
    refuse a bucket that is there and none of the account's own."""

    def work(client: S3Client) -> tuple[str, ...]:
        if not (first and _is_made(client, bucket)):
            if not _is_reached(client, bucket):
                _make(client, bucket)
            elif first and not _is_own(client, bucket):
                raise taken()
        kept = _set_lifecycle(store, client, bucket)
        limits = () if OURS in [each.get("ID") for each in kept] else (LIFECYCLE_UNSUPPORTED,)
        return (OBJECTS_EXPIRE, *limits) if any(expires(each, prefix) for each in kept) else limits

    return await store(work)


async def exists(store: Store, bucket: str) -> bool:
    return await store(lambda client: _is_there(client, bucket))


async def pages(
    store: Store, bucket: str, prefix: str, after: str = ""
) -> AsyncIterator[list[str]]:
    """Yield the keys with this prefix after a key, up to 1000 at a time, in lexical order."""
    more = {"StartAfter": after} if after else {}
    while True:
        answer = await store(
            lambda client, more=more: client.list_objects_v2(  # type: ignore[misc]
                Bucket=bucket, Prefix=prefix, **more
            )
        )
        yield [entry["Key"] for entry in answer.get("Contents", ())]
        token = answer.get("NextContinuationToken")
        if not token:
            return
        more = {"ContinuationToken": token}


def _is_there(client: S3Client, bucket: str) -> bool:
    try:
        client.head_bucket(Bucket=bucket)
    except ClientError as error:
        if code_of(error) in GONE:
            return False
        raise
    return True


def _is_reached(client: S3Client, bucket: str) -> bool:
    """As `_is_there`, for a bucket to be created: one of another account is refused as such, where
    a HEAD alone would show wrong credentials."""
    try:
        return _is_there(client, bucket)
    except ClientError as error:
        if code_of(error) not in FORBIDDEN:
            raise
        try:
            _make(client, bucket)
        except ClientError as other:
            if code_of(other) == TAKEN:
                raise other from error
        raise


def _is_own(client: S3Client, bucket: str, *, if_denied: bool = True) -> bool:
    """True if the account has the bucket, by its list of buckets: a stranger who took the name may
    have opened the bucket to all. `if_denied`: the answer where the list is."""
    try:
        return bucket in [each.get("Name") for each in client.list_buckets().get("Buckets", ())]
    except ClientError as error:
        if code_of(error) not in FORBIDDEN | UNSUPPORTED:
            raise
        return if_denied


def _is_made(client: S3Client, bucket: str) -> bool:
    """Make a bucket unasked; return false where the account has it, or may make none."""
    try:
        return _make(client, bucket)
    except ClientError as error:
        is_taken = code_of(error) == TAKEN and not _is_own(client, bucket, if_denied=False)
        if is_taken or code_of(error) not in UNMADE | {TAKEN}:
            raise
        return False


def _make(client: S3Client, bucket: str) -> bool:
    """Make a bucket; return false for one that the account has, which some stores make again."""
    region = client.meta.region_name
    try:
        if region == "us-east-1":
            client.create_bucket(Bucket=bucket)
        else:
            client.create_bucket(
                Bucket=bucket,
                CreateBucketConfiguration={"LocationConstraint": region},  # type: ignore[typeddict-item]
            )
    except ClientError as error:
        if code_of(error) != "BucketAlreadyOwnedByYou":  # another process created it
            raise
        return False
    return True


def _set_lifecycle(store: Store, client: S3Client, bucket: str) -> list[LifecycleRuleTypeDef]:
    """Add the rule to the bucket's others; return the rules that the store keeps."""
    if time.monotonic() < store.lifecycles_from:
        return []
    rule: LifecycleRuleTypeDef = {
        "ID": OURS,
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": INCOMPLETE_DAYS},
    }
    present: list[LifecycleRuleTypeDef] = []
    try:
        present = _lifecycle(client, bucket)
    except ClientError as error:
        if code_of(error) not in UNSUPPORTED:
            raise
        if code_of(error) in ABSENT:
            store.lifecycles_from = time.monotonic() + LOOK_AGAIN_SECONDS
        return []
    try:
        if any(each.get("ID") == OURS for each in present):
            return present
        client.put_bucket_lifecycle_configuration(
            Bucket=bucket, LifecycleConfiguration={"Rules": [*present, rule]}
        )
        # Read it back, because a store may answer 200 and store no rule.
        return _lifecycle(client, bucket)
    except ClientError as error:
        if code_of(error) in UNSUPPORTED:
            return present
        raise


def expires(rule: LifecycleRuleTypeDef, prefix: str) -> bool:
    """Return whether a rule deletes objects with this prefix by age. Ours have no tags, so that a
    rule for a tag spares them."""
    expiration = rule.get("Expiration") or {}
    chosen = rule.get("Filter") or {}
    both = chosen.get("And") or {}
    theirs = both.get("Prefix") or chosen.get("Prefix") or rule.get("Prefix") or ""
    return (
        rule.get("Status") == "Enabled"
        and ("Days" in expiration or "Date" in expiration)
        and "Tag" not in chosen
        and not both.get("Tags")
        and (prefix.startswith(theirs) or theirs.startswith(prefix))
    )


def _lifecycle(client: S3Client, bucket: str) -> list[LifecycleRuleTypeDef]:
    try:
        answer = client.get_bucket_lifecycle_configuration(Bucket=bucket)
    except ClientError as error:
        if code_of(error) in {"NoSuchLifecycleConfiguration", "404"}:
            return []
        raise
    return list(answer["Rules"])  # type: ignore[arg-type]


RIGHTS = "s3:GetBucketVersioning, s3:ListBucketVersions and s3:DeleteObjectVersion"
_NO_VERSIONS = {*UNSUPPORTED, "VersioningNotConfigured"}
_MISSING = {"NoSuchKey", "NoSuchVersion"}


class _Versioning(Enum):
    """True if a bucket keeps versions of deleted objects."""

    NEVER = auto()
    KEPT = auto()
    UNKNOWN = auto()


class _DeletedPage(NamedTuple):
    """Batch that one request deletes; delete markers are no objects."""

    doomed: list[ObjectIdentifierTypeDef]
    objects: int


async def empty(store: Store, bucket: str, prefix: str) -> AsyncIterator[int]:
    """Delete the objects with this prefix, and their versions as far as the account may; yield
    after each request how many. None in a missing bucket. Raises: the error of the first object
    that was refused, at the end or when a whole request was."""
    if not await exists(store, bucket):
        return
    refused: str | None = None
    async for page in _pages(store, bucket, prefix):
        codes = await store(lambda client, page=page: _delete(client, bucket, page.doomed))  # type: ignore[misc]
        refused = refused or next(iter(codes), None)
        if codes and len(codes) == len(page.doomed):
            break
        if page.doomed:
            yield max(0, page.objects - len(codes))
    if refused is not None:
        raise error_of(refused, status=400)


async def delete(store: Store, bucket: str) -> bool:
    """Delete the bucket unless something is in it; return whether it is gone. Idempotent."""

    def work(client: S3Client) -> bool:
        try:
            client.delete_bucket(Bucket=bucket)
        except ClientError as error:
            if code_of(error) == "BucketNotEmpty":
                return False
            if code_of(error) not in GONE:
                raise
        return True

    return await store(work)


async def require_empty(store: Store, bucket: str, prefix: str) -> None:
    """Raises: BlobsRefused unless no version of an object with this prefix is left."""
    versioning = await store(lambda client: _versioning_of(client, bucket))
    if versioning is _Versioning.UNKNOWN:
        raise BlobsRefused(
            f"bucket {bucket} may keep versions of the deleted objects under {prefix}",
            hint=f"allow the account {RIGHTS}",
        )
    if versioning is _Versioning.KEPT and await store(
        lambda client: _has_versions(client, bucket, prefix)
    ):
        raise BlobsRefused(
            f"bucket {bucket} keeps versions of the deleted objects under {prefix}",
            hint=f"allow the account {RIGHTS}, or delete them, or let a lifecycle rule do so",
        )


async def _pages(store: Store, bucket: str, prefix: str) -> AsyncIterator[_DeletedPage]:
    if await store(lambda client: _may_list_versions(client, bucket)):
        async for page in _version_pages(store, bucket, prefix):
            yield page
        return
    async for keys in pages(store, bucket, prefix):
        yield _DeletedPage([{"Key": key} for key in keys], len(keys))


async def _version_pages(store: Store, bucket: str, prefix: str) -> AsyncIterator[_DeletedPage]:
    more: dict[str, str] = {}
    while True:
        answer = await store(
            lambda client, more=more: client.list_object_versions(  # type: ignore[misc]
                Bucket=bucket, Prefix=prefix, **more
            )
        )
        versions, markers = answer.get("Versions", ()), answer.get("DeleteMarkers", ())
        yield _DeletedPage([*map(_identifier, versions), *map(_identifier, markers)], len(versions))
        if not answer.get("IsTruncated"):
            return
        more = {
            "KeyMarker": answer["NextKeyMarker"],
            "VersionIdMarker": answer["NextVersionIdMarker"],
        }


def _identifier(version: object) -> ObjectIdentifierTypeDef:
    found: dict[str, str] = version  # type: ignore[assignment]
    return {"Key": found["Key"], "VersionId": found["VersionId"]}


def _may_list_versions(client: S3Client, bucket: str) -> bool:
    if _versioning_of(client, bucket) is not _Versioning.KEPT:
        return False
    try:
        client.list_object_versions(Bucket=bucket, MaxKeys=1)
    except ClientError as error:
        if code_of(error) not in FORBIDDEN:
            raise
        return False
    return True


def _has_versions(client: S3Client, bucket: str, prefix: str) -> bool:
    try:
        found = client.list_object_versions(Bucket=bucket, Prefix=prefix, MaxKeys=1)
    except ClientError as error:
        if code_of(error) not in FORBIDDEN:
            raise
        return True
    return bool(found.get("Versions") or found.get("DeleteMarkers"))


def _versioning_of(client: S3Client, bucket: str) -> _Versioning:
    try:
        status = client.get_bucket_versioning(Bucket=bucket).get("Status")
    except ClientError as error:
        if code_of(error) in _NO_VERSIONS | GONE:
            return _Versioning.NEVER
        if code_of(error) in FORBIDDEN:
            return _Versioning.UNKNOWN
        raise
    return _Versioning.KEPT if status else _Versioning.NEVER


def _delete(client: S3Client, bucket: str, doomed: Iterable[ObjectIdentifierTypeDef]) -> list[str]:
    """Return the codes of the objects that were refused."""
    objects = list(doomed)
    if not objects:
        return []
    answer = client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
    codes = [each.get("Code", "") for each in answer.get("Errors", ())]
    return [each for each in codes if each not in _MISSING]
