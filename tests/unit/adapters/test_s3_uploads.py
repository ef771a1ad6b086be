"""Content goes in one request or in parts, within its limit, and a broken upload is aborted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from postroad.adapters.s3 import blobs
from postroad.adapters.s3.objects import Objects, timeout_of
from postroad.adapters.s3.store import Store
from postroad.errors import BlobsUnavailable, MailTooLarge

PART = 10


class Client:
    """Notes what is sent; the operation `fails` fails."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.timeouts: list[timedelta | None] = []
        self.fails: str | None = None
        self.whole: list[tuple[str, bytes]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def operation(**values: Any) -> Any:
            self.sent.append((name, values))
            if name == self.fails:
                raise BlobsUnavailable("away")
            return {"UploadId": "id", "ETag": f"tag {values.get('PartNumber')}"}

        return operation

    async def store(self, work: Callable[[Client], Any], timeout: timedelta | None = None) -> Any:
        self.timeouts.append(timeout)
        return work(self)

    async def put(self, key: str, body: bytes) -> None:
        self.whole.append((key, body))

    async def upload(self, content: Any, limit: int | None = None) -> int:
        store, objects = cast("Store", self.store), cast("Objects", self)
        return (await blobs.upload(store, objects, "b", "k", content, limit)).size_bytes

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.sent]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(blobs, "PART_BYTES", PART)
    return Client()


async def pieces(*sizes: int) -> AsyncIterator[bytes]:
    for number, size in enumerate(sizes):
        yield bytes([number]) * size


@pytest.mark.parametrize("size", [0, 1, PART - 1])
async def test_what_fits_into_one_request_goes_in_one(client: Client, size: int) -> None:
    assert await client.upload(b"x" * size) == size

    assert client.whole == [("k", b"x" * size)]
    assert client.sent == []


@pytest.mark.parametrize(
    ("size", "parts"), [(PART, [PART]), (PART + 1, [PART, 1]), (3 * PART, [PART] * 3)]
)
async def test_longer_content_goes_in_parts_that_are_completed_in_order(
    client: Client, size: int, parts: list[int]
) -> None:
    assert await client.upload(b"x" * size) == size

    assert client.whole == []
    assert client.names == [
        "create_multipart_upload",
        *["upload_part"] * len(parts),
        "complete_multipart_upload",
    ]
    sent = [values for name, values in client.sent if name == "upload_part"]
    assert [len(each["Body"]) for each in sent] == parts
    assert [each["PartNumber"] for each in sent] == [*range(1, len(parts) + 1)]
    assert {(each["Bucket"], each["Key"], each["UploadId"]) for each in sent} == {("b", "k", "id")}
    assert client.sent[-1][1] == {
        "Bucket": "b",
        "Key": "k",
        "UploadId": "id",
        "MultipartUpload": {
            "Parts": [
                {"PartNumber": each, "ETag": f"tag {each}"} for each in range(1, len(parts) + 1)
            ]
        },
    }
    assert client.timeouts == [None, *[timeout_of(PART)] * (len(parts) + 1)]


async def test_pieces_and_files_are_cut_into_parts_of_equal_size(
    client: Client, tmp_path: Path
) -> None:
    assert await client.upload(pieces(4, 25, 3)) == 32
    file = tmp_path / "mail"
    file.write_bytes(b"y" * 21)
    assert await client.upload(file) == 21

    bodies = [values["Body"] for name, values in client.sent if name == "upload_part"]
    assert [len(each) for each in bodies] == [10, 10, 10, 2, 10, 10, 1]
    assert b"".join(bodies[:4]) == bytes(4) + b"\1" * 25 + b"\2" * 3
    assert await client.upload(pieces(4)) == 4
    assert client.whole == [("k", bytes(4))]


@pytest.mark.parametrize(("size", "limit"), [(5, 5), (PART, PART), (25, 25), (25, None)])
async def test_content_of_just_its_limit_is_taken(
    client: Client, size: int, limit: int | None
) -> None:
    assert await client.upload(b"x" * size, limit) == size


@pytest.mark.parametrize("size", [PART - 1, PART])
async def test_content_that_is_too_large_at_once_is_not_sent(client: Client, size: int) -> None:
    with pytest.raises(MailTooLarge, match=f"than {size - 1} octets"):
        await client.upload(b"x" * size, size - 1)

    assert (client.whole, client.sent) == ([], [])


async def test_content_that_turns_out_too_large_is_aborted(client: Client) -> None:
    with pytest.raises(MailTooLarge):
        await client.upload(b"x" * 21, 20)

    assert client.names[-1] == "abort_multipart_upload"
    assert client.sent[-1][1] == {"Bucket": "b", "Key": "k", "UploadId": "id"}


@pytest.mark.parametrize("fails", ["upload_part", "complete_multipart_upload"])
async def test_an_upload_that_fails_is_aborted(client: Client, fails: str) -> None:
    client.fails = fails

    with pytest.raises(BlobsUnavailable):
        await client.upload(b"x" * 11)

    assert client.names[-1] == "abort_multipart_upload"


async def test_the_first_error_counts_where_the_abort_fails_too(client: Client) -> None:
    client.fails = "abort_multipart_upload"

    with pytest.raises(MailTooLarge):
        await client.upload(b"x" * 21, 20)


async def test_an_upload_that_is_cancelled_is_aborted(client: Client) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"x" * 2 * PART
        await asyncio.Event().wait()

    uploading = asyncio.ensure_future(client.upload(endless()))
    while "upload_part" not in client.names:
        await asyncio.sleep(0)
    uploading.cancel()

    with pytest.raises(asyncio.CancelledError):
        await uploading
    assert client.names[-1] == "abort_multipart_upload"


def test_a_part_is_as_small_as_s3_allows() -> None:
    assert blobs.PART_BYTES == 5 * 2**20
