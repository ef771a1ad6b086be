"""What every `Blobs` promises. Subclasses provide the fixtures `blobs` (its bucket created) and
`nowhere` (a bucket that was never created)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroad.domain.mail.shapes import shape_of
from postroad.errors import BlobMissing, BlobsError, MailTooLarge
from postroad.ports.blobs import Blobs, Stored

MAIL = b"Subject: a letter\r\nTo: b\r\n\r\nbody\r\n"
LARGE_BYTES = 20 << 20


async def streamed(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def broken_off(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    raise ConnectionResetError("the client went away")


async def large(total_bytes: int = LARGE_BYTES) -> AsyncIterator[bytes]:
    for number in range(total_bytes >> 16):
        yield bytes([number % 251]) * (1 << 16)


async def keys_of(blobs: Blobs, prefix: str = "") -> list[str]:
    return [key async for key in blobs.keys(prefix)]


class BlobsContract:
    async def test_what_was_put_is_got_byte_for_byte(self, blobs: Blobs) -> None:
        body = bytes(range(256)) * 40

        await blobs.put("queue/2026/01/01/a", body)

        assert await blobs.get("queue/2026/01/01/a") == body

    @pytest.mark.parametrize(
        ("content", "header_bytes"),
        [
            pytest.param(MAIL, 28, id="usual"),
            pytest.param(b"Subject: x\n\nbody\n", 12, id="bare line feeds"),
            pytest.param(b"Subject: x\r\n", 12, id="header only: all of it"),
            pytest.param(b"\r\nbody", 2, id="no header"),
            pytest.param(b"", 0, id="nothing"),
        ],
    )
    async def test_the_header_is_measured_while_putting(
        self, blobs: Blobs, content: bytes, header_bytes: int
    ) -> None:
        stored = await blobs.put("queue/a", content)

        assert (stored.size_bytes, stored.shape.header_size) == (len(content), header_bytes)

    async def test_a_file_and_a_stream_are_put_like_bytes(
        self, blobs: Blobs, tmp_path: Path
    ) -> None:
        file = tmp_path / "letter.eml"
        file.write_bytes(MAIL)

        from_file = await blobs.put("queue/file", file)
        from_stream = await blobs.put("queue/stream", streamed(MAIL[:5], b"", MAIL[5:]))

        assert from_file == from_stream == Stored(len(MAIL), shape_of((MAIL,)))
        assert await blobs.get("queue/file") == await blobs.get("queue/stream") == MAIL

    async def test_a_large_stream_comes_back_in_chunks(self, blobs: Blobs) -> None:
        sent, came = hashlib.sha256(), hashlib.sha256()
        async for chunk in large():
            sent.update(chunk)

        stored = await blobs.put("queue/large", large())
        async for chunk in blobs.stream("queue/large"):
            assert len(chunk) <= 1 << 20
            came.update(chunk)

        assert stored.size_bytes == LARGE_BYTES
        assert came.digest() == sent.digest()

    @pytest.mark.parametrize("size", [10, 9 << 20], ids=["small", "in parts"])
    async def test_a_stream_that_breaks_off_leaves_nothing_visible(
        self, blobs: Blobs, size: int
    ) -> None:
        with pytest.raises(ConnectionResetError):
            await blobs.put("queue/broken", broken_off(b"x" * size))

        with pytest.raises(BlobMissing):
            await blobs.get("queue/broken")

    @pytest.mark.parametrize("limit", [10, 9 << 20], ids=["small", "in parts"])
    async def test_past_its_limit_a_mail_is_refused_and_not_visible(
        self, blobs: Blobs, limit: int
    ) -> None:
        with pytest.raises(MailTooLarge):
            await blobs.put("queue/much", streamed(b"x" * limit, b"x"), limit_bytes=limit)

        assert await keys_of(blobs) == []
        await blobs.put("queue/enough", streamed(b"x" * limit), limit_bytes=limit)

    async def test_putting_again_changes_nothing(self, blobs: Blobs) -> None:
        await blobs.put("queue/a", MAIL)
        await blobs.put("queue/a", MAIL)

        assert await keys_of(blobs) == ["queue/a"]

    async def test_a_new_object_is_put_only_where_there_is_none(self, blobs: Blobs) -> None:
        await blobs.put_new("queue/owner", b"first")
        await blobs.put_new("queue/owner", b"second")

        assert await blobs.get("queue/owner") == b"first"
        await blobs.put("queue/owner", b"third")
        assert await blobs.get("queue/owner") == b"third"

    async def test_of_several_that_are_put_new_at_once_one_stands(self, blobs: Blobs) -> None:
        bodies = [f"{number}".encode() for number in range(10)]

        await asyncio.gather(*(blobs.put_new("queue/owner", body) for body in bodies))

        found = await blobs.get("queue/owner")
        await blobs.put_new("queue/owner", b"late")
        assert found in bodies
        assert await blobs.get("queue/owner") == found

    async def test_many_are_deleted_together_and_no_others(self, blobs: Blobs) -> None:
        for number in range(5):
            await blobs.put(f"queue/{number}", b"x")

        await blobs.delete_together(["queue/0", "queue/2", "queue/never was", "queue/ä +%"])

        assert [key async for key in blobs.keys("queue/")] == ["queue/1", "queue/3", "queue/4"]

    async def test_deletions_at_the_same_time_are_all_done(self, blobs: Blobs) -> None:
        keys = [f"queue/{number}" for number in range(30)]
        for key in keys:
            await blobs.put(key, b"x")

        await asyncio.gather(*(blobs.delete(key) for key in (*keys[1:], "queue/never was")))

        assert [key async for key in blobs.keys("queue/")] == ["queue/0"]

    async def test_what_was_deleted_is_missing_and_deleting_again_is_fine(
        self, blobs: Blobs
    ) -> None:
        await blobs.put("queue/a", MAIL)

        await blobs.delete("queue/a")
        await blobs.delete("queue/a")

        with pytest.raises(BlobMissing):
            await blobs.get("queue/a")
        with pytest.raises(BlobMissing):
            async for _ in blobs.stream("queue/a"):
                pass

    async def test_keys_are_listed_by_prefix_in_order(self, blobs: Blobs) -> None:
        for key in ("one/c", "one/a", "two/b"):
            await blobs.put(key, b"x")

        assert await keys_of(blobs, "one/") == ["one/a", "one/c"]
        assert await keys_of(blobs) == ["one/a", "one/c", "two/b"]

    async def test_keys_after_a_key_are_listed_whether_it_is_there_or_not(
        self, blobs: Blobs
    ) -> None:
        for number in range(8):
            await blobs.put(f"queue/{number}", b"x")
        await blobs.put("queue2/0", b"x")

        async def after(key: str) -> list[str]:
            return [each async for each in blobs.keys("queue/", key)]

        assert await after("queue/3") == [f"queue/{n}" for n in range(4, 8)]
        assert await after("queue/3 or so") == [f"queue/{n}" for n in range(4, 8)]
        assert await after("queue/7") == []
        assert await after("queue") == [f"queue/{n}" for n in range(8)]

    async def test_more_keys_than_one_page_are_listed_and_dropped(self, blobs: Blobs) -> None:
        await asyncio.gather(*(blobs.put(f"queue/{n:05}", b"x") for n in range(1100)))

        listed = await keys_of(blobs, "queue/")
        dropped = await blobs.drop("queue/", bucket=False)

        assert listed == [f"queue/{n:05}" for n in range(1100)]
        assert dropped == 1100
        assert await keys_of(blobs) == []

    async def test_a_prefix_is_emptied_step_by_step(self, blobs: Blobs) -> None:
        for key in ("mine/a", "mine/b", "mine/c", "mine/d", "theirs/a"):
            await blobs.put(key, b"x")

        counts = [each async for each in blobs.empty("mine/")]

        assert sum(counts) == 4
        assert sum([each async for each in blobs.empty("mine/")]) == 0
        assert await keys_of(blobs) == ["theirs/a"]

    async def test_a_bucket_that_is_missing_is_empty(self, nowhere: Blobs) -> None:
        assert sum([each async for each in nowhere.empty("mine/")]) == 0
        assert await nowhere.drop("mine/") == 0

    async def test_dropping_a_queue_keeps_what_others_have_in_the_bucket(
        self, blobs: Blobs
    ) -> None:
        await blobs.put("mine/a", b"x")
        await blobs.put("theirs/a", b"x")

        assert await blobs.drop("mine/") == 1

        assert await blobs.exists()
        assert await keys_of(blobs) == ["theirs/a"]

    async def test_dropping_the_last_objects_drops_the_bucket_and_again_is_fine(
        self, blobs: Blobs
    ) -> None:
        await blobs.put("mine/a", b"x")

        assert await blobs.drop("mine/") == 1
        assert await blobs.drop("mine/") == 0

        assert not await blobs.exists()

    async def test_creating_again_keeps_what_is_there(self, blobs: Blobs) -> None:
        await blobs.put("queue/a", b"x")

        await blobs.create()

        assert await keys_of(blobs) == ["queue/a"]

    async def test_putting_into_no_bucket_may_work_later(self, nowhere: Blobs) -> None:
        with pytest.raises(BlobsError) as caught:
            await nowhere.put("queue/a", MAIL)
        with pytest.raises(BlobsError) as caught_new:
            await nowhere.put_new("queue/a", MAIL)

        assert caught.value.transient
        assert caught_new.value.transient
        assert not await nowhere.exists()
