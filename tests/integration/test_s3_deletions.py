"""Batched deletions: one refused key does not keep other objects, and a store that cannot delete
many objects in one request gets one request for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from postroad.adapters.s3.blobs import S3Blobs
from postroad.adapters.s3.clients import Access
from postroad.adapters.s3.store import Store
from postroad.errors import BlobsUnavailable, CredentialsRefused
from support.s3 import SlowStore, slow_store

KEYS = ["queue/a", "queue/b", "queue/c"]
SINGLY = [("DELETE", f"/bucket/{key}") for key in KEYS]
DENIED = b"<Error><Code>AccessDenied</Code></Error>"
ONE_DENIED = (
    b"<DeleteResult><Error><Key>queue/b</Key><Code>AccessDenied</Code>"
    b"<Message>locked</Message></Error></DeleteResult>"
)


@pytest.fixture
async def server() -> AsyncIterator[SlowStore]:
    async with slow_store() as running:
        yield running


@pytest.fixture
async def blobs(server: SlowStore) -> AsyncIterator[S3Blobs]:
    made = Store(Access(server.endpoint, "us-east-1", "key", "secret"))
    yield S3Blobs(made, "bucket")
    await made.close()


def deleted(server: SlowStore) -> list[tuple[str, str]]:
    return sorted(each for each in server.requests if each[0] == "DELETE")


async def test_a_key_that_is_refused_keeps_no_other_from_being_deleted(
    server: SlowStore, blobs: S3Blobs
) -> None:
    server.refusals = {"POST": (200, ONE_DENIED), "/bucket/queue/b": (403, DENIED)}

    found = await asyncio.gather(*map(blobs.delete, KEYS), return_exceptions=True)

    assert [type(each) for each in found] == [type(None), CredentialsRefused, type(None)]
    assert deleted(server) == SINGLY


async def test_many_are_deleted_although_one_is_refused_with_an_error(
    server: SlowStore, blobs: S3Blobs
) -> None:
    server.refusals = {"POST": (200, ONE_DENIED), "/bucket/queue/b": (403, DENIED)}

    with pytest.raises(CredentialsRefused):
        await blobs.delete_together(KEYS)

    assert deleted(server) == SINGLY


@pytest.mark.parametrize(
    ("refusal", "asked"),
    [
        ((501, b"<Error><Code>NotImplemented</Code></Error>"), 0),
        ((405, b""), 0),
        ((400, b"<Error><Code>MalformedXML</Code></Error>"), 1),
        ((403, DENIED), 1),
        ((200, b"what?"), 1),
    ],
    ids=["not implemented", "not allowed", "not understood", "denied", "senseless"],
)
async def test_a_store_that_does_not_delete_many_at_once_is_asked_for_each(
    server: SlowStore, blobs: S3Blobs, refusal: tuple[int, bytes], asked: int
) -> None:
    """Only after the reply that the store lacks batched deletions for good, the adapter sends no
    other one."""
    server.refusals = {"POST": refusal}
    await blobs.delete_together(KEYS)
    assert deleted(server) == SINGLY
    server.requests.clear()

    await blobs.delete_together(KEYS)

    assert deleted(server) == SINGLY
    assert [verb for verb, _ in server.requests].count("POST") == asked


@pytest.mark.parametrize(
    "refusal",
    [(503, b"<Error><Code>SlowDown</Code></Error>"), (502, b"<html>no upstream</html>")],
    ids=["slow down", "a proxy's"],
)
async def test_a_store_that_asks_to_be_spared_is_not_asked_for_each(
    server: SlowStore, blobs: S3Blobs, refusal: tuple[int, bytes]
) -> None:
    server.refusals = {"POST": refusal}

    with pytest.raises(BlobsUnavailable):
        await blobs.delete_together(KEYS)

    assert deleted(server) == []
