"""The `Blobs` contract in memory and in real stores."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator

import pytest

import servers
from contract.blobs_contract import BlobsContract
from postroad.adapters.memory.blobs import Bucket, MemoryBlobs
from postroad.adapters.s3.blobs import S3Blobs
from postroad.adapters.s3.clients import Access
from postroad.adapters.s3.store import Store
from postroad.errors import BlobsUnavailable, CredentialsRefused
from postroad.ports.blobs import Blobs
from support.memory.fault_injection import FaultInjector
from support.servers import store_client


class TestMemoryBlobs(BlobsContract):
    @pytest.fixture
    async def blobs(self) -> Blobs:
        made = MemoryBlobs(Bucket(), FaultInjector())
        await made.create()
        return made

    @pytest.fixture
    def nowhere(self) -> Blobs:
        return MemoryBlobs(Bucket(), FaultInjector())


def access(server: str = "S3", endpoint: str = "", secret_key: str = "") -> Access:
    """The stack's store."""
    variables = os.environ
    return Access(
        endpoint=endpoint or variables[f"POSTROAD_{server}_ENDPOINT"],
        region=variables[f"POSTROAD_{server}_REGION"],
        access_key=variables[f"POSTROAD_{server}_ACCESS_KEY"],
        secret_key=secret_key or variables[f"POSTROAD_{server}_SECRET_KEY"],
        ca_file=servers.settings().ca_file,
    )


class S3Contract(BlobsContract):
    server = "S3"

    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        store = Store(access(self.server))
        yield store
        await store.close()

    @pytest.fixture
    async def blobs(self, store: Store) -> AsyncIterator[Blobs]:
        made = S3Blobs(store, f"contract-{secrets.token_hex(6)}")
        await made.create()
        yield made
        await made.drop()

    @pytest.fixture
    def nowhere(self, store: Store) -> Blobs:
        return S3Blobs(store, f"contract-{secrets.token_hex(6)}")


@pytest.mark.needs("s3")
class TestS3Blobs(S3Contract):
    async def test_a_store_without_lifecycle_is_reported(self, store: Store) -> None:
        blobs = S3Blobs(store, f"contract-{secrets.token_hex(6)}")

        assert await blobs.create() == ("LifecycleUnsupported",)

        await blobs.drop()

    async def test_a_bucket_of_our_own_is_no_strangers(self, blobs: Blobs) -> None:
        assert await blobs.create(first=True) == ("LifecycleUnsupported",)

    async def test_a_wrong_secret_is_refused_as_such(self) -> None:
        store = Store(access(secret_key="wrong"))

        with pytest.raises(CredentialsRefused) as caught:
            await S3Blobs(store, "contract-any").put("a/b", b"x")

        assert "wrong" not in caught.value.explain()
        await store.close()

    async def test_a_store_that_is_away_is_unavailable(self) -> None:
        store = Store(access(endpoint="http://127.0.0.1:9"))

        with pytest.raises(BlobsUnavailable):
            await S3Blobs(store, "contract-any").get("a/b")

        await store.close()


@pytest.mark.needs("minio")
class TestMinioBlobs(S3Contract):
    server = "MINIO"

    async def test_a_store_that_refuses_our_rule_keeps_the_users_own(self, store: Store) -> None:
        """MinIO has rules that expire, but none that aborts uploads: those it clears by itself."""
        bucket = f"contract-{secrets.token_hex(6)}"
        blobs = S3Blobs(store, bucket)
        client = store_client("MINIO")
        theirs = {"ID": "theirs", "Status": "Enabled", "Filter": {"Prefix": "x/"}}
        client.create_bucket(Bucket=bucket)
        client.put_bucket_lifecycle_configuration(
            Bucket=bucket,
            LifecycleConfiguration={"Rules": [{**theirs, "Expiration": {"Days": 9}}]},
        )

        assert await blobs.create() == ("LifecycleUnsupported",)

        rules = client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
        assert [each["ID"] for each in rules] == ["theirs"]
        await blobs.drop()


def test_secrets_show_in_no_representation() -> None:
    shown = repr(Access("http://localhost", "us-east-1", "who", "hunter2"))

    assert "hunter2" not in shown


def test_a_store_of_aws_needs_neither_endpoint_nor_keys() -> None:
    assert Access(None, "eu-west-1").identity == {}
