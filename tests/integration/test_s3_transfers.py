"""A slow transfer is no timeout; and an error page of a proxy is not taken for the store's
reply."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from postroad.adapters.s3 import clients, objects, store
from postroad.adapters.s3.blobs import PART_BYTES, S3Blobs
from postroad.adapters.s3.clients import Access
from postroad.adapters.s3.store import Store
from postroad.errors import BlobMissing, BlobsError, BlobsUnavailable
from support.s3 import SlowStore, slow_store

SIZES = pytest.mark.parametrize(
    "size_bytes", [PART_BYTES - 1, PART_BYTES + 1], ids=["in one request", "in parts"]
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


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter than an upload takes in these tests; obstore counts whole seconds."""
    for module in (clients, objects):
        monkeypatch.setattr(module, "SILENCE", timedelta(seconds=1))
    monkeypatch.setattr(store, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(store, "READ_SECONDS", 0.3)


@SIZES
async def test_an_upload_that_goes_on_slowly_succeeds(
    short_silence: None, server: SlowStore, blobs: S3Blobs, size_bytes: int
) -> None:
    server.bytes_per_second = 2 << 20

    stored = await blobs.put("queue/a", b"x" * size_bytes)

    assert stored.size_bytes == server.stored == size_bytes


@SIZES
async def test_an_upload_that_is_stuck_fails(
    short_silence: None,
    server: SlowStore,
    blobs: S3Blobs,
    monkeypatch: pytest.MonkeyPatch,
    size_bytes: int,
) -> None:
    monkeypatch.setattr(objects, "SLOWEST", PART_BYTES)
    server.stuck_after = 1 << 20

    with pytest.raises(BlobsUnavailable):
        await blobs.put("queue/a", b"x" * size_bytes)

    assert server.stored < size_bytes
    assert server.aborted == (size_bytes > PART_BYTES)


def test_the_timeout_grows_with_the_size() -> None:
    assert objects.timeout_of(0) == 2 * clients.SILENCE
    assert objects.timeout_of(objects.SLOWEST) - objects.timeout_of(0) == timedelta(seconds=1)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"<html>no route to this</html>", BlobsUnavailable),
        (b"", BlobsUnavailable),
        (b"<Error><Code>NoSuchBucket</Code></Error>", BlobsUnavailable),
        (b"<Error><Code>NoSuchKey</Code></Error>", BlobMissing),
    ],
    ids=["a proxy's", "without a body", "no bucket", "no object"],
)
async def test_only_the_stores_own_404_says_that_a_mail_has_no_bytes(
    server: SlowStore, blobs: S3Blobs, body: bytes, error: type[BlobsError]
) -> None:
    server.refusal = (404, body)

    with pytest.raises(error) as caught:
        await blobs.get("queue/a")

    assert type(caught.value) is error


@pytest.mark.parametrize("body", [b"<html>no route to this</html>", b""])
@SIZES
async def test_a_proxys_404_for_an_upload_passes(
    server: SlowStore, blobs: S3Blobs, body: bytes, size_bytes: int
) -> None:
    server.refusal = (404, body)

    with pytest.raises(BlobsUnavailable) as caught:
        await blobs.put("queue/a", b"x" * size_bytes)

    assert caught.value.transient
