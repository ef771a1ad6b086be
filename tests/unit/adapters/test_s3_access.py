"""How the drivers of S3 are set up, and what an object store's refusals mean."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    NoCredentialsError,
    SSLError,
)
from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from postroad.adapters.s3 import objects, store
from postroad.adapters.s3.clients import Access, ObjectClients, error_of
from postroad.adapters.s3.objects import Objects
from postroad.adapters.s3.store import OPEN_BUCKETS, Store
from postroad.errors import (
    BlobMissing,
    BlobsRefused,
    BlobsUnavailable,
    CredentialsRefused,
    PostroadError,
    TlsRefused,
)
from support.certificates import Certificates
from support.s3 import slow_store

OWN = Access("http://127.0.0.1:1", "eu-west-1", "key", "secret")
AWS = Access(None, "eu-west-1")


def test_the_keys_are_given_where_they_are_known_and_are_in_no_repr() -> None:
    assert OWN.identity == {
        "endpoint": "http://127.0.0.1:1",
        "access_key_id": "key",
        "secret_access_key": "secret",
    }
    assert AWS.identity == {}
    assert "secret" not in repr(OWN)
    assert "'key'" not in repr(OWN)


def drivers(access: Access) -> dict[str, Any]:
    made = ObjectClients(access, "bucket")
    return {"reading": made.reading, "writing": made.writing, "deleting": made.deleting}


def test_reads_end_with_the_stores_silence_and_uploads_with_the_transfer() -> None:
    found = drivers(OWN)

    options = {name: each.client_options for name, each in found.items()}
    assert [options[name].get("read_timeout") for name in found] == ["8s", None, "8s"]
    assert {each["timeout"] for each in options.values()} == {"10m"}
    assert {each["connect_timeout"] for each in options.values()} == {"3s"}
    assert {each["allow_http"] for each in options.values()} == {"true"}
    for each in found.values():
        assert (each.config["bucket"], each.config["region"]) == ("bucket", "eu-west-1")
        assert each.config["virtual_hosted_style_request"] == "false"
        assert each.retry_config["max_retries"] == 1
        assert each.retry_config["retry_timeout"] == timedelta(seconds=16)


def test_one_deletion_is_no_batch_of_one() -> None:
    found = drivers(OWN)

    disabled = {name: each.config.get("disable_bulk_delete") for name, each in found.items()}
    assert disabled["deleting"] == "true"
    assert "true" not in (disabled["reading"], disabled["writing"])


def test_awss_buckets_are_hosts_and_are_reached_by_tls_alone() -> None:
    for each in drivers(AWS).values():
        assert each.config["virtual_hosted_style_request"] == "true"
        assert each.client_options["allow_http"] == "false"
        assert "endpoint" not in each.config


def test_authorities_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TlsRefused, match="cannot be read"):
        Objects(Access("https://s3", "eu-west-1", ca_file=tmp_path / "missing.crt"), "bucket")


@pytest.fixture
def made() -> Store:
    return Store(OWN)


async def test_the_client_signs_and_ends_requests_as_any_store_can_bear(made: Store) -> None:
    config: Any = made._client(None).meta.config

    assert config.signature_version == "s3v4"
    assert config.s3["addressing_style"] == "path"
    assert (config.connect_timeout, config.read_timeout) == (3, 10)
    assert config.retries["mode"] == "standard"
    assert config.retries["total_max_attempts"] == 2
    assert config.max_pool_connections == 32
    assert config.request_checksum_calculation == "when_required"
    assert config.response_checksum_validation == "when_required"
    assert made._client(None).meta.endpoint_url == "http://127.0.0.1:1"
    assert made._client(None).meta.region_name == "eu-west-1"
    of_aws: Any = Store(AWS)._client(None).meta.config
    assert of_aws.s3["addressing_style"] == "auto"


async def test_a_timeout_is_that_of_sending_a_body_and_of_its_answer(made: Store) -> None:
    longer = made._client(timedelta(seconds=90))
    config: Any = longer.meta.config

    assert (config.connect_timeout, config.read_timeout) == (90, 90)
    assert made._client(timedelta(seconds=90)) is longer
    assert made._client(None) is not longer


async def test_the_clients_trust_the_authorities_of_the_access(tmp_path: Path) -> None:
    authority = Certificates.make(tmp_path).authority
    trusting = Store(Access("https://s3", "eu-west-1", "key", "secret", authority))

    ours, others = (cast("Any", each._client(None)) for each in (trusting, Store(OWN)))
    assert ours._endpoint.http_session._verify == str(authority)
    assert others._endpoint.http_session._verify != str(authority)
    with pytest.raises(TlsRefused):
        Store(Access("https://s3", "eu-west-1", ca_file=tmp_path / "missing.crt"))._client(None)


async def test_a_bucket_has_its_objects_once(made: Store) -> None:
    assert made.objects("a") is made.objects("a")
    assert made.objects("a") is not made.objects("b")


async def test_the_buckets_that_were_used_last_have_clients(made: Store) -> None:
    """An operator has a thousand."""
    first, second = made.objects("first"), made.objects("second")
    for number in range(OPEN_BUCKETS - 2):
        made.objects(f"bucket-{number}")
        assert made.objects("first") is first

    made.objects("one more")

    assert made.objects("first") is first
    assert made.objects("second") is not second


async def test_all_buckets_at_an_endpoint_have_the_same_clients() -> None:
    """Opening them takes an operator of a thousand buckets longer than the requests."""
    async with slow_store() as server:
        made = Store(Access(f"{server.endpoint}/", "us-east-1", "key", "secret"))
        for bucket in ("one", "other"):
            found = made.objects(bucket)
            await found.put("mail.a/b c+d", b"x")
            await found.get("mail.a/b c+d")
            await found.delete("mail.a/b c+d")
        assert made.objects("one")._clients is made.objects("other")._clients

    assert server.requests == [
        (verb, f"/{bucket}/mail.a/b%20c%2Bd")
        for bucket in ("one", "other")
        for verb in ("PUT", "GET", "DELETE")
    ]


async def test_one_request_for_many_deletions_goes_to_the_bucket() -> None:
    async with slow_store() as server:
        server.refusals["POST"] = (405, b"<Error><Code>MethodNotAllowed</Code></Error>")
        made = Store(Access(server.endpoint, "us-east-1", "key", "secret"))

        assert await made.objects("one").delete_together(["a", "b"]) == [None, None]

    assert server.requests[0] == ("POST", "/one?delete")
    assert set(server.requests[1:]) == {("DELETE", "/one/a"), ("DELETE", "/one/b")}


async def test_a_bucket_of_aws_has_clients_of_its_own() -> None:
    made = Store(AWS)

    assert made.objects("one")._clients.reading.config["bucket"] == "one"
    assert made.objects("other")._clients.reading.config["bucket"] == "other"


async def test_a_closed_store_takes_no_requests(made: Store) -> None:
    assert await made(lambda client: client.meta.region_name) == "eu-west-1"

    await made.close()
    await made.close()

    with pytest.raises(BlobsUnavailable, match="was closed"):
        await made(lambda client: client.meta.region_name)


async def test_a_closed_store_has_closed_its_connections(
    made: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    client: Any = await made(lambda client: client)
    monkeypatch.setattr(client, "close", lambda: closed.append(client))

    await made.close()

    assert closed == [client]


def refused_with(code: str, server: str | None = None) -> ClientError:
    headers = {} if server is None else {"server": server}
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPHeaders": headers}}
    return ClientError(answer, "ListBuckets")


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ({"ResponseMetadata": {"HTTPHeaders": {"server": "VERSITYGW"}}}, "VERSITYGW"),
        ({"ResponseMetadata": {"HTTPHeaders": {}}}, "S3"),
        (refused_with("AccessDenied", "MinIO"), "MinIO"),
    ],
    ids=["named", "nameless", "the list is denied"],
)
async def test_a_store_shows_its_name_to_a_user_without_the_right_to_list(
    made: Store, monkeypatch: pytest.MonkeyPatch, answer: Any, name: str
) -> None:
    def list_buckets() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(made._client(None), "list_buckets", list_buckets)

    assert await made.check() == name


async def test_a_check_with_wrong_keys_fails(made: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def list_buckets() -> Any:
        raise refused_with("InvalidAccessKeyId")

    monkeypatch.setattr(made._client(None), "list_buckets", list_buckets)

    with pytest.raises(CredentialsRefused):
        await made.check()


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        *((each, 403, CredentialsRefused) for each in ("AccessDenied", "403", "InvalidToken")),
        *((each, 404, BlobMissing) for each in ("NoSuchKey", "NotFound")),
        ("NoSuchBucket", 404, BlobsUnavailable),
        ("BucketAlreadyExists", 409, BlobsRefused),
        *(("Unheard", each, BlobsRefused) for each in (400, 405, 410, 422, 499)),
        *(("Unheard", each, BlobsUnavailable) for each in (404, 408, 409, 429, 500, 503)),
        *(("SlowDown", each, BlobsUnavailable) for each in (400, 503)),
        *(("Unheard", each, BlobsUnavailable) for each in (200, 399)),
    ],
)
def test_what_may_pass_is_transient(code: str, status: int, expected: type[PostroadError]) -> None:
    assert type(error_of(code, "", status)) is expected


def test_a_refusal_names_its_code_or_text_and_what_helps() -> None:
    assert str(error_of("", "RequestError")).endswith("as it should: RequestError")
    assert str(error_of("Odd", "text")).endswith("as it should: Odd")
    assert "the operator creates it" in str(error_of("NoSuchBucket").hint)
    assert "bucketPrefix" in str(error_of("BucketAlreadyExists").hint)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionDeniedError("no"), CredentialsRefused),
        (UnauthenticatedError("no"), CredentialsRefused),
        (PermissionError("no"), CredentialsRefused),
        (OSError("invalid peer certificate: certificate verify failed"), TlsRefused),
        (OSError("reset"), BlobsUnavailable),
        (TimeoutError(), BlobsUnavailable),
        (OSError("<Error><Code>InvalidAccessKeyId</Code></Error>"), CredentialsRefused),
    ],
    ids=str,
)
def test_errors_of_single_requests(error: Exception, expected: type[PostroadError]) -> None:
    assert type(objects.translated(error)) is expected


@pytest.mark.parametrize(
    ("text", "is_later"),
    [
        ("503 Service Unavailable: <Error><Code>SlowDown</Code></Error>", True),
        ("400: <Error><Code>MalformedXML</Code></Error>", False),
        *((f"error response, status code: {each}", True) for each in (408, 429, 502, 503, 504)),
        *((f"error response, status code: {each}", False) for each in (400, 405, 500, 501)),
        ("connection reset by peer", True),
        ("DeleteObjects request failed for key queue/a: AccessDenied", False),
        ("Got invalid DeleteObjects response: what?", False),
    ],
)
def test_a_refusal_for_now_differs_from_one_of_the_batch(text: str, is_later: bool) -> None:
    assert objects._is_later(OSError(text)) is is_later


@pytest.mark.parametrize(
    ("error", "expected", "said"),
    [
        (NoCredentialsError(), CredentialsRefused, "got no credentials"),
        (
            SSLError(endpoint_url="x", error=OSError("CERTIFICATE_VERIFY_FAILED")),
            TlsRefused,
            "certificate",
        ),
        (ConnectionClosedError(endpoint_url="x"), BlobsUnavailable, "closed the connection"),
        (EndpointConnectionError(endpoint_url="x"), BlobsUnavailable, "Could not connect"),
        (refused_with("Odd"), BlobsUnavailable, "Odd"),
    ],
)
def test_errors_of_the_client(error: Exception, expected: type[PostroadError], said: str) -> None:
    found = store.translated(error)

    assert type(found) is expected
    assert said in str(found)


def test_a_closed_connection_may_be_one_without_tls_and_a_status_decides_a_clients_error() -> None:
    closed = store.translated(ConnectionClosedError(endpoint_url="x"))
    answer: Any = {"Error": {"Code": "Odd"}, "ResponseMetadata": {"HTTPStatusCode": 400}}

    assert "https://" in str(closed.hint)
    assert type(store.translated(ClientError(answer, "PutObject"))) is BlobsRefused
