"""Buckets and their one lifecycle rule: set beside the user's own where the store can, and believed
when shown.

No S3 server that can be had for tests aborts uploads by a rule, so its answers are played here at
the edge of boto3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import ANY, Stubber

from postroad.adapters.s3 import buckets
from postroad.adapters.s3.store import Store, translated
from postroad.errors import BlobsRefused, CredentialsRefused, PostroadError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")
OURS = {
    "ID": "postroad-abort-incomplete-uploads",
    "Status": "Enabled",
    "Filter": {"Prefix": ""},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": buckets.INCOMPLETE_DAYS},
}
THEIRS = {"ID": "theirs", "Status": "Enabled", "Filter": {"Prefix": "x/"}}


class PlayedStore(Store):
    """A store whose answers are played, in order."""

    def __init__(self, head: int | None = 200, region: str = "us-east-1") -> None:
        self._played = boto3.client(
            "s3", region_name=region, aws_access_key_id="a", aws_secret_access_key="b"
        )
        self.answers = Stubber(self._played)
        self.lifecycles_from = 0.0
        if head is not None:
            self.is_headed(head)

    def is_headed(self, status: int) -> None:
        if status == 200:
            self.answers.add_response("head_bucket", {}, {"Bucket": "mail"})
        else:
            self.answers.add_client_error("head_bucket", str(status), http_status_code=status)

    async def __call__(self, work: Callable[[S3Client], T], timeout: object = None) -> T:
        return work(self._played)

    def shows(self, *rules: object) -> None:
        self.answers.add_response(
            "get_bucket_lifecycle_configuration", {"Rules": list(rules)}, {"Bucket": "mail"}
        )

    def takes(self, *rules: object) -> None:
        self.answers.add_response(
            "put_bucket_lifecycle_configuration",
            {},
            {"Bucket": "mail", "LifecycleConfiguration": {"Rules": list(rules)}},
        )


@pytest.fixture
def store() -> Iterator[PlayedStore]:
    played = PlayedStore()
    with played.answers:
        yield played
    played.answers.assert_no_pending_responses()


async def test_the_rule_is_added_to_the_users_own(store: PlayedStore) -> None:
    store.shows(THEIRS)
    store.takes(THEIRS, OURS)
    store.shows(THEIRS, OURS)

    assert await buckets.create(store, "mail") == ()


async def test_a_bucket_that_has_no_rule_gets_ours(store: PlayedStore) -> None:
    store.answers.add_client_error(
        "get_bucket_lifecycle_configuration", "NoSuchLifecycleConfiguration", http_status_code=404
    )
    store.takes(OURS)
    store.shows(OURS)

    assert await buckets.create(store, "mail") == ()


async def test_a_rule_that_is_there_is_not_written_again(store: PlayedStore) -> None:
    store.shows(OURS)

    assert await buckets.create(store, "mail") == ()


async def test_a_store_that_takes_the_rule_and_keeps_nothing_is_not_believed(
    store: PlayedStore,
) -> None:
    store.shows(THEIRS)
    store.takes(THEIRS, OURS)
    store.shows(THEIRS)

    assert await buckets.create(store, "mail") == ("LifecycleUnsupported",)


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("BucketAlreadyExists", BlobsRefused, "taken by another account"),
        ("BucketAlreadyOwnedByYou", CredentialsRefused, "refused the credentials: 403"),
        ("AccessDenied", CredentialsRefused, "refused the credentials: 403"),
    ],
)
async def test_a_bucket_that_refuses_a_head_is_of_another_account_where_its_name_is_taken(
    code: str, error: type[PostroadError], said: str
) -> None:
    store = PlayedStore(head=403)
    store.answers.add_client_error("create_bucket", code, http_status_code=409)

    with store.answers, pytest.raises(ClientError) as refused:
        await buckets.create(store, "mail")

    found = translated(refused.value)
    assert isinstance(found, error)
    assert said in str(found)


@pytest.mark.parametrize(
    ("listed", "is_taken"),
    [(["other", "mail"], False), (["mail-of-others"], True), (None, False)],
    ids=["own", "of another account", "the list is denied"],
)
@pytest.mark.parametrize("answer", ["BucketAlreadyOwnedByYou", "AccessDenied", "NotImplemented"])
async def test_a_new_queue_takes_no_bucket_that_a_stranger_opened_to_it(
    answer: str, listed: list[str] | None, *, is_taken: bool
) -> None:
    store = PlayedStore(head=None)
    store.answers.add_client_error("create_bucket", answer, http_status_code=400)
    store.is_headed(200)
    if listed is None:
        store.answers.add_client_error("list_buckets", "AccessDenied", http_status_code=403)
    else:
        store.answers.add_response("list_buckets", {"Buckets": [{"Name": e} for e in listed]})
    if not is_taken:
        store.shows(OURS)

    with store.answers:
        if is_taken:
            with pytest.raises(BlobsRefused, match="another account"):
                await buckets.create(store, "mail", first=True)
        else:
            assert await buckets.create(store, "mail", first=True) == ()
    store.answers.assert_no_pending_responses()


async def test_a_new_queue_whose_bucket_has_another_account_is_refused() -> None:
    store = PlayedStore(head=None)
    store.answers.add_client_error("create_bucket", "BucketAlreadyExists", http_status_code=409)
    store.answers.add_response("list_buckets", {"Buckets": [{"Name": "mail-of-others"}]})

    with store.answers, pytest.raises(ClientError) as refused:
        await buckets.create(store, "mail", first=True)

    assert "taken by another account" in str(translated(refused.value))


async def test_a_new_queue_is_refused_a_name_that_is_taken_where_the_list_is_denied() -> None:
    store = PlayedStore(head=None)
    store.answers.add_client_error("create_bucket", "BucketAlreadyExists", http_status_code=409)
    store.answers.add_client_error("list_buckets", "AccessDenied", http_status_code=403)

    with store.answers, pytest.raises(ClientError) as refused:
        await buckets.create(store, "mail", first=True)

    assert "taken by another account" in str(translated(refused.value))


@pytest.mark.parametrize(
    "answer",
    [
        "BucketAlreadyExists",
        "IllegalLocationConstraintException",
        "InvalidLocationConstraint",
        "TooManyBuckets",
    ],
)
async def test_a_new_queue_gets_its_bucket_that_is_there_however_the_store_refuses_another(
    answer: str,
) -> None:
    """SeaweedFS answers BucketAlreadyExists about an account's own buckets, too: the creation of a
    queue that was broken off behind its bucket would be refused for ever."""
    store = PlayedStore(head=None)
    store.answers.add_client_error("create_bucket", answer, http_status_code=409)
    own = {"Buckets": [{"Name": "mail"}]}
    if answer == "BucketAlreadyExists":
        store.answers.add_response("list_buckets", own)
    store.is_headed(200)
    store.answers.add_response("list_buckets", own)
    store.shows(OURS)

    with store.answers:
        assert await buckets.create(store, "mail", first=True) == ()
    store.answers.assert_no_pending_responses()


AGED = {"Expiration": {"Days": 9}, "Status": "Enabled"}


@pytest.mark.parametrize(
    ("rule", "limits"),
    [
        (AGED, ("ObjectsExpire",)),
        (AGED | {"Filter": {}}, ("ObjectsExpire",)),
        (AGED | {"Filter": {"Prefix": "mail."}}, ("ObjectsExpire",)),
        (AGED | {"Filter": {"Prefix": "mail.out/2026/"}}, ("ObjectsExpire",)),
        (AGED | {"Prefix": "mail.out/"}, ("ObjectsExpire",)),
        (
            AGED | {"Filter": {"And": {"ObjectSizeGreaterThan": 9}}},
            ("ObjectsExpire",),
        ),
        (AGED | {"Filter": {"Prefix": "mail.other/"}}, ()),
        (AGED | {"Filter": {"Tag": {"Key": "k", "Value": "v"}}}, ()),
        (AGED | {"Filter": {"And": {"Tags": [{"Key": "k", "Value": "v"}]}}}, ()),
        (AGED | {"Status": "Disabled"}, ()),
        (AGED | {"Expiration": {"ExpiredObjectDeleteMarker": True}}, ()),
    ],
    ids=str,
)
async def test_a_rule_that_deletes_bytes_of_mail_by_age_is_reported(
    store: PlayedStore, rule: dict[str, object], limits: tuple[str, ...]
) -> None:
    store.shows(OURS, rule)

    assert await buckets.create(store, "mail", "mail.out/") == limits


async def test_it_is_reported_by_a_store_that_refuses_our_rule_too(store: PlayedStore) -> None:
    store.shows(AGED)
    store.answers.add_client_error("put_bucket_lifecycle_configuration", "InvalidArgument")

    assert await buckets.create(store, "mail") == ("ObjectsExpire", "LifecycleUnsupported")


async def test_a_store_without_lifecycles_is_asked_for_them_once_in_a_while(
    store: PlayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        store.answers.add_client_error(
            "get_bucket_lifecycle_configuration", "NotImplemented", http_status_code=501
        )

    refuse()
    assert await buckets.create(store, "mail") == ("LifecycleUnsupported",)
    store.is_headed(200)
    assert await buckets.create(store, "mail") == ("LifecycleUnsupported",)

    monkeypatch.setattr(store, "lifecycles_from", 0.0)
    store.is_headed(200)
    store.shows(OURS)
    assert await buckets.create(store, "mail") == ()


async def test_a_store_that_refuses_our_rule_is_asked_for_those_of_others(
    store: PlayedStore,
) -> None:
    store.shows()
    store.answers.add_client_error("put_bucket_lifecycle_configuration", "NotImplemented")
    assert await buckets.create(store, "mail") == ("LifecycleUnsupported",)

    store.is_headed(200)
    store.shows(AGED)
    store.answers.add_client_error("put_bucket_lifecycle_configuration", "NotImplemented")

    assert await buckets.create(store, "mail") == ("ObjectsExpire", "LifecycleUnsupported")


@pytest.mark.parametrize("code", ["NotImplemented", "MalformedXML", "InvalidRequest"])
async def test_a_store_that_refuses_the_rule_is_reported(store: PlayedStore, code: str) -> None:
    store.shows(THEIRS)
    store.answers.add_client_error(
        "put_bucket_lifecycle_configuration",
        code,
        expected_params={"Bucket": "mail", "LifecycleConfiguration": ANY},
    )

    assert await buckets.create(store, "mail") == ("LifecycleUnsupported",)


@pytest.mark.parametrize(
    ("region", "place"),
    [
        ("us-east-1", {}),
        ("eu-west-1", {"CreateBucketConfiguration": {"LocationConstraint": "eu-west-1"}}),
    ],
)
@pytest.mark.parametrize("first", [False, True])
async def test_a_missing_bucket_is_made_in_the_region_of_the_store(
    region: str, place: dict[str, object], *, first: bool
) -> None:
    store = PlayedStore(head=None if first else 404, region=region)
    store.answers.add_response("create_bucket", {}, {"Bucket": "mail", **place})
    store.shows(OURS)

    with store.answers:
        assert await buckets.create(store, "mail", first=first) == ()
    store.answers.assert_no_pending_responses()


@pytest.mark.parametrize(
    "operation", ["head_bucket", "create_bucket", "list_buckets", "get", "put"]
)
async def test_an_error_that_says_nothing_of_the_bucket_is_the_callers(operation: str) -> None:
    first = operation in ("create_bucket", "list_buckets")
    store = PlayedStore(head=None)
    if operation == "list_buckets":
        store.answers.add_client_error("create_bucket", "AccessDenied", http_status_code=403)
    if operation != "create_bucket":
        store.is_headed(500 if operation == "head_bucket" else 200)
    if operation == "put":
        store.shows(THEIRS)
    if operation != "head_bucket":
        name = operation if "_" in operation else f"{operation}_bucket_lifecycle_configuration"
        store.answers.add_client_error(name, "InternalError", http_status_code=500)

    with store.answers, pytest.raises(ClientError):
        await buckets.create(store, "mail", first=first)
    store.answers.assert_no_pending_responses()


@pytest.mark.parametrize(("head", "there"), [(200, True), (404, False)])
async def test_a_bucket_exists_or_not(head: int, there: bool) -> None:
    store = PlayedStore(head=head)

    with store.answers:
        assert await buckets.exists(store, "mail") is there


def listed(store: PlayedStore, keys: list[str], token: str = "", **asked: str) -> None:
    answer = {"Contents": [{"Key": each} for each in keys]} if keys else {}
    store.answers.add_response(
        "list_objects_v2",
        answer | ({"NextContinuationToken": token} if token else {}),
        {"Bucket": "mail", "Prefix": "queue/", **asked},
    )


async def test_keys_are_listed_page_by_page_after_a_key() -> None:
    store = PlayedStore()
    listed(store, ["queue/b"], "more", StartAfter="queue/a")
    listed(store, [], "again", ContinuationToken="more")
    listed(store, ["queue/c"], ContinuationToken="again")

    with store.answers:
        await store(lambda client: client.head_bucket(Bucket="mail"))
        pages = [each async for each in buckets.pages(store, "mail", "queue/", "queue/a")]

    assert pages == [["queue/b"], [], ["queue/c"]]
