"""Empties and deletes buckets, of which some keep the versions of deleted objects.

A deletion without a version leaves the bytes in a bucket with versioning, under a delete marker. So
there each version is deleted by its id. Where the account may not, the objects are deleted all the
same, and what stays is an error that names the rights.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from botocore.exceptions import ClientError

from postroad.adapters.s3.buckets import FORBIDDEN, GONE, UNSUPPORTED, exists, pages
from postroad.adapters.s3.codes import error_of
from postroad.adapters.s3.store import Store, code_of
from postroad.errors import BlobsRefused

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

RIGHTS = "s3:GetBucketVersioning, s3:ListBucketVersions and s3:DeleteObjectVersion"
_NO_VERSIONS = {*UNSUPPORTED, "VersioningNotConfigured"}
_MISSING = {"NoSuchKey", "NoSuchVersion"}


class _Versioning(Enum):
    """Whether a bucket keeps versions of deleted objects."""

    NEVER = auto()
    KEPT = auto()
    UNKNOWN = auto()


class _DeletedPage(NamedTuple):
    """What one request deletes; delete markers are no objects."""

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
