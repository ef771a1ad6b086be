"""Blobs as James stores them, in the chunks of his Cassandra tables: plain, compressed, encrypted.

`zstd-jni-1.5.7.txt` has the octets 0 to 250 repeated to 20,000, compressed by the library of his
development version: as he does with octets at hand, and with a stream."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from postroad.errors import BlobMissing, InvalidInput
from postroad.james.blobs import ZSTD, JamesBlobs, LargeBlob
from postroad.james.encryption import HEADER, KEY_BYTES, PREFIX, Decryption
from postroad.james.properties import BlobPlace, Cipher

PLAIN = bytes(i % 251 for i in range(20_000))
FRAMES = {
    way: base64.b64decode(frame)
    for way, frame in (
        line.split()
        for line in Path(__file__).with_name("zstd-jni-1.5.7.txt").read_text().splitlines()
    )
}
CIPHER = Cipher("pässword", b"salty")


class FakeSession:
    """Tables that hold each blob in two chunks."""

    def __init__(self, **blobs: bytes) -> None:
        self._blobs = {
            blob_id: (blob[: len(blob) // 2], blob[len(blob) // 2 :])
            for blob_id, blob in blobs.items()
        }

    async def execute(self, _: object, values: tuple[Any, ...]) -> list[dict[str, Any]]:
        chunks = self._blobs.get(values[0])
        if chunks is None:
            return []
        return [{"data": chunks[values[1]]}] if values[1:] else [{"position": len(chunks)}]


def blobs(place: BlobPlace, **stored: bytes) -> JamesBlobs:
    return JamesBlobs(place, cast("Any", FakeSession(**stored)))


def encrypted(plain: bytes) -> bytes:
    """Encrypt a blob of one segment, as Tink's streaming AES-GCM does."""
    salt, prefix = bytes(KEY_BYTES), bytes(PREFIX)
    key = HKDF(SHA256(), KEY_BYTES, salt, b"").derive(Decryption(CIPHER)._key)
    return bytes([HEADER]) + salt + prefix + AESGCM(key).encrypt(prefix + b"\0\0\0\0\1", plain, b"")


@pytest.mark.parametrize("way", FRAMES)
async def test_compressed_blob_beside_a_plain_one_is_decompressed(way: str) -> None:
    found = blobs(BlobPlace(None, has_frames=True), header=b"a: b\r\n\r\n", body=FRAMES[way])

    assert await found.content("header", "body") == b"a: b\r\n\r\n" + PLAIN


async def test_blob_that_was_compressed_and_then_encrypted_is_read() -> None:
    place = BlobPlace(None, cipher=CIPHER, has_frames=True)
    found = blobs(place, header=encrypted(b"a: b\r\n\r\n"), body=encrypted(FRAMES["stream"]))

    assert await found.content("header", "body") == b"a: b\r\n\r\n" + PLAIN


async def test_body_that_is_a_frame_itself_is_left_so_by_a_james_who_compresses_none() -> None:
    found = blobs(BlobPlace(None), header=b"", body=FRAMES["bytes"])

    assert await found.content("header", "body") == FRAMES["bytes"]


async def test_body_that_was_a_frame_when_it_came_is_left_so_with_what_follows_it() -> None:
    sent = FRAMES["bytes"] + b"\r\n"
    found = blobs(BlobPlace(None, has_frames=True), header=b"", body=sent)

    assert await found.content("header", "body") == sent


async def test_frame_that_stands_for_too_many_octets_is_an_error_of_its_mail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("postroad.james.blobs.MAX_DECOMPRESSED", 2**20)
    block = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"A"  # of one octet, repeated
    bomb = ZSTD + b"\x00\x38" + 9 * block
    found = blobs(BlobPlace(None, has_frames=True), header=b"", body=bomb)

    with pytest.raises(InvalidInput, match="more than 1048576 octets"):
        await found.content("header", "body", is_alone=True)


async def test_frame_that_stands_for_much_is_decompressed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("postroad.james.blobs.MAX_AT_ONCE", 2**20)
    monkeypatch.setattr("postroad.james.blobs.FED", 16)
    blocks = [(128 * 1024 << 3 | 1 << 1 | last).to_bytes(3, "little") + b"A" for last in (0, 1)]
    frame = ZSTD + b"\x00\x38" + 15 * blocks[0] + blocks[1]
    found = blobs(BlobPlace(None, has_frames=True), header=b"", body=frame)

    with pytest.raises(LargeBlob):
        await found.content("header", "body")

    assert await found.content("header", "body", is_alone=True) == b"A" * 2**21


@pytest.mark.parametrize("frame", [FRAMES["stream"][:-3], FRAMES["bytes"][:9] + b"\xff" * 99])
async def test_frame_that_is_damaged_is_an_error_of_its_mail(frame: bytes) -> None:
    found = blobs(BlobPlace(None, has_frames=True), header=b"", body=frame)

    with pytest.raises(InvalidInput, match="cannot be decompressed"):
        await found.content("header", "body")


async def test_missing_blob_is_named() -> None:
    found = blobs(BlobPlace(None), header=b"")

    with pytest.raises(BlobMissing, match="no blob other for its body"):
        await found.content("header", "other")
