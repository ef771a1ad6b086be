"""Versions of deleted objects are deleted, or named: answers of S3 are played at the edge of
boto3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from botocore.stub import Stubber

from postroad.adapters.s3 import buckets
from postroad.adapters.s3.blobs import S3Blobs
from postroad.adapters.s3.clients import Access
from postroad.adapters.s3.store import Store, translated
from postroad.errors import BlobsRefused, BlobsUnavailable, CredentialsRefused

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")
BUCKET, PREFIX = {"Bucket": "mail"}, {"Bucket": "mail", "Prefix": "mine/"}


class PlayedAnswers(Store):
    """A store whose answers are played, in order."""

    def __init__(self) -> None:
        super().__init__(Access("http://localhost", "us-east-1", "a", "b"))
        self._played = boto3.client(
            "s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        self.answers = Stubber(self._played)

    async def __call__(self, work: Callable[[S3Client], T], timeout: object = None) -> T:
        try:
            return work(self._played)
        except (ClientError, BotoCoreError) as error:
            raise translated(error) from error

    def has(self, *, versioning: str | None = None, denied: bool = False) -> None:
        """Play that the bucket is there, and whether it keeps versions."""
        self.answers.add_response("head_bucket", {}, BUCKET)
        self.keeps(versioning=versioning, denied=denied)

    def keeps(self, *, versioning: str | None = None, denied: bool = False) -> None:
        """Play whether the bucket keeps versions."""
        if denied:
            self.denies("get_bucket_versioning")
        else:
            status = {"Status": versioning} if versioning else {}
            self.answers.add_response("get_bucket_versioning", status, BUCKET)

    def denies(self, operation: str) -> None:
        """Play a refusal."""
        self.answers.add_client_error(operation, "AccessDenied", http_status_code=403)

    def lists(self, *keys: str, more: str = "", after: str = "") -> None:
        """Play a page of objects; `more` and `after` are tokens."""
        found: dict[str, object] = {"Contents": [{"Key": key} for key in keys]}
        found |= {"NextContinuationToken": more} if more else {}
        asked = {"ContinuationToken": after} if after else {}
        self.answers.add_response("list_objects_v2", found, PREFIX | asked)

    def deletes(
        self, *doomed: dict[str, str], refused: tuple[str, ...] = (), code: str = "AccessDenied"
    ) -> None:
        """Play a deletion, and the objects that are refused."""
        errors = [{"Key": each, "Code": code} for each in refused]
        request = {**BUCKET, "Delete": {"Objects": list(doomed), "Quiet": True}}
        self.answers.add_response("delete_objects", {"Errors": errors}, request)


@pytest.fixture
def store() -> Iterator[PlayedAnswers]:
    played = PlayedAnswers()
    with played.answers:
        yield played
        played.answers.assert_no_pending_responses()


async def emptied(store: Store, counts: list[int] | None = None) -> list[int]:
    counts = [] if counts is None else counts
    async for each in buckets.empty(store, "mail", "mine/"):
        counts.append(each)
    return counts


async def test_a_bucket_without_versions_is_emptied_by_keys(store: PlayedAnswers) -> None:
    """A page may be empty."""
    store.has()
    store.lists("mine/a", "mine/b", more="1")
    store.deletes({"Key": "mine/a"}, {"Key": "mine/b"})
    store.lists(more="2", after="1")
    store.lists("mine/c", after="2")
    store.deletes({"Key": "mine/c"})

    assert await emptied(store) == [2, 1]


async def test_a_missing_bucket_has_nothing_to_empty(store: PlayedAnswers) -> None:
    store.answers.add_client_error("head_bucket", "404", http_status_code=404)

    assert await emptied(store) == []


@pytest.mark.parametrize(
    ("code", "error"), [("InternalError", BlobsUnavailable), ("InvalidRequest", BlobsRefused)]
)
async def test_a_page_that_is_refused_ends_it(
    store: PlayedAnswers, code: str, error: type[Exception]
) -> None:
    """The next would be, too."""
    store.has()
    store.lists("mine/a", more="1")
    store.deletes({"Key": "mine/a"}, refused=("mine/a",), code=code)

    with pytest.raises(error, match=code):
        await emptied(store)


async def test_an_object_that_is_gone_meanwhile_is_deleted(store: PlayedAnswers) -> None:
    store.has()
    store.lists("mine/a")
    store.deletes({"Key": "mine/a"}, refused=("mine/a",), code="NoSuchKey")

    assert await emptied(store) == [1]


@pytest.mark.parametrize(
    ("code", "gone"), [("", True), ("NoSuchBucket", True), ("BucketNotEmpty", False)]
)
async def test_a_bucket_is_gone_unless_something_is_in_it(
    store: PlayedAnswers, code: str, *, gone: bool
) -> None:
    if code:
        store.answers.add_client_error("delete_bucket", code)
    else:
        store.answers.add_response("delete_bucket", {}, BUCKET)

    assert await buckets.delete(store, "mail") is gone


@pytest.mark.parametrize(
    "operation", ["delete_bucket", "get_bucket_versioning", "list_object_versions"]
)
async def test_another_error_is_not_taken_for_an_answer(
    store: PlayedAnswers, operation: str
) -> None:
    if operation == "list_object_versions":
        store.keeps(versioning="Enabled")
    store.answers.add_client_error(operation, "InternalError", http_status_code=500)
    work = (
        buckets.delete(store, "mail")
        if operation == "delete_bucket"
        else buckets.require_empty(store, "mail", "mine/")
    )

    with pytest.raises(BlobsUnavailable):
        await work


@pytest.mark.parametrize("code", ["NotImplemented", "VersioningNotConfigured", "NoSuchBucket"])
async def test_a_store_without_versioning_keeps_no_versions(
    store: PlayedAnswers, code: str
) -> None:
    store.answers.add_client_error("get_bucket_versioning", code)

    await buckets.require_empty(store, "mail", "mine/")


@pytest.mark.parametrize("kind", ["Versions", "DeleteMarkers"])
async def test_a_version_or_a_marker_that_is_left_is_named(store: PlayedAnswers, kind: str) -> None:
    store.keeps(versioning="Enabled")
    found = {kind: [{"Key": "mine/a", "VersionId": "1"}]}
    store.answers.add_response("list_object_versions", found, {**PREFIX, "MaxKeys": 1})

    with pytest.raises(BlobsRefused, match="keeps versions"):
        await buckets.require_empty(store, "mail", "mine/")


async def test_versions_and_delete_markers_are_deleted_page_by_page(store: PlayedAnswers) -> None:
    store.has(versioning="Enabled")
    store.answers.add_response("list_object_versions", {}, {**BUCKET, "MaxKeys": 1})
    more = {"KeyMarker": "mine/a", "VersionIdMarker": "2"}
    first = {
        "Versions": [{"Key": "mine/a", "VersionId": "1"}],
        "DeleteMarkers": [{"Key": "mine/a", "VersionId": "2"}],
        "IsTruncated": True,
        "NextKeyMarker": "mine/a",
        "NextVersionIdMarker": "2",
    }
    store.answers.add_response("list_object_versions", first, PREFIX)
    store.deletes({"Key": "mine/a", "VersionId": "1"}, {"Key": "mine/a", "VersionId": "2"})
    last = {"Versions": [{"Key": "mine/b", "VersionId": "null"}], "IsTruncated": False}
    store.answers.add_response("list_object_versions", last, {**PREFIX, **more})
    store.deletes({"Key": "mine/b", "VersionId": "null"})

    assert await emptied(store) == [1, 1]


async def test_an_object_that_is_refused_keeps_no_other(store: PlayedAnswers) -> None:
    store.has()
    store.lists("mine/a", "mine/b")
    store.deletes({"Key": "mine/a"}, {"Key": "mine/b"}, refused=("mine/a",))
    counts: list[int] = []

    with pytest.raises(CredentialsRefused, match="AccessDenied"):
        await emptied(store, counts)

    assert counts == [1]


async def test_an_account_that_may_not_see_versions_deletes_objects_and_reports_the_rest(
    store: PlayedAnswers,
) -> None:
    blobs = S3Blobs(store, "mail")
    store.has(versioning="Suspended")
    store.denies("list_object_versions")
    store.lists("mine/a")
    store.deletes({"Key": "mine/a"})
    store.keeps(versioning="Suspended")
    store.denies("list_object_versions")

    with pytest.raises(BlobsRefused, match="keeps versions of the deleted objects") as caught:
        await blobs.drop("mine/", bucket=False)
    assert "s3:ListBucketVersions" in caught.value.hint


async def test_a_bucket_of_which_nothing_is_known_may_keep_versions(store: PlayedAnswers) -> None:
    store.has(denied=True)
    store.lists()
    store.keeps(denied=True)

    with pytest.raises(BlobsRefused, match="may keep versions"):
        await S3Blobs(store, "mail").drop("mine/", bucket=False)


async def test_a_bucket_that_is_gone_kept_none(store: PlayedAnswers) -> None:
    store.has(denied=True)
    store.lists()
    store.answers.add_response("delete_bucket", {}, BUCKET)

    assert await S3Blobs(store, "mail").drop("mine/") == 0


async def test_a_bucket_that_is_not_empty_is_no_success(store: PlayedAnswers) -> None:
    store.has(denied=True)
    store.lists()
    store.answers.add_client_error("delete_bucket", "BucketNotEmpty", http_status_code=409)
    store.keeps(denied=True)

    with pytest.raises(BlobsRefused, match="may keep versions"):
        await S3Blobs(store, "mail").drop("mine/")


async def test_a_bucket_stays_that_holds_what_others_put_there(store: PlayedAnswers) -> None:
    store.has()
    store.lists()
    store.answers.add_client_error("delete_bucket", "BucketNotEmpty", http_status_code=409)
    store.keeps()

    assert await S3Blobs(store, "mail").drop("mine/") == 0
