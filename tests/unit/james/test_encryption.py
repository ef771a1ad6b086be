"""Blobs encrypted by Tink 1.9.0 with the values that James takes: `tink-1.9.0.txt` has lengths, and
the octets 0 to 250 repeated to them, encrypted."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from postroad.errors import InvalidInput
from postroad.james.encryption import Decryption
from postroad.james.properties import Cipher

CIPHER = Cipher("pässword", bytes.fromhex("73616c7479"))
VECTORS = {
    int(length): base64.b64decode(encrypted)
    for length, encrypted in (
        line.split() for line in Path(__file__).with_name("tink-1.9.0.txt").read_text().splitlines()
    )
}


@pytest.mark.parametrize("length", VECTORS)
def test_blobs_of_tink_are_decrypted(length: int) -> None:
    assert Decryption(CIPHER).decrypted(VECTORS[length]) == bytes(i % 251 for i in range(length))


def test_blobs_of_none_one_and_several_segments_are_tried() -> None:
    assert sorted(VECTORS) == [0, 5, 4041]


@pytest.mark.parametrize("cipher", [Cipher("other", CIPHER.salt), Cipher("pässword", b"other")])
def test_other_keys_are_refused_by_the_names_of_the_properties(cipher: Cipher) -> None:
    with pytest.raises(InvalidInput, match=r"encryption\.aes\.password"):
        Decryption(cipher).decrypted(VECTORS[5])


def test_blob_without_its_last_segment_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot be decrypted"):
        Decryption(CIPHER).decrypted(VECTORS[4041][:4096])


@pytest.mark.parametrize("blob", [b"", b"Subject: hi\r\n\r\n", b"x" * 200])
def test_plain_blobs_are_refused(blob: bytes) -> None:
    with pytest.raises(InvalidInput, match="not encrypted"):
        Decryption(CIPHER).decrypted(blob)


def test_repr_shows_no_secret() -> None:
    assert "pässword" not in repr(CIPHER)
    assert "salty" not in repr(CIPHER)
