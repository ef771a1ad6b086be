"""Keys are read from PEM, and neither errors nor reprs have anything of them."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.dsa import generate_private_key as dsa_key
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as ec_key
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from postroad.errors import InvalidInput
from postroad.signing import keys
from postroad.signing.keys import SigningKey
from support.signing import ed25519_pem, rsa_pem

RSA = generate_private_key(65537, 1024)
TRADITIONAL = RSA.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
ENCRYPTED = RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pw"))
EC = ec_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
DSA = dsa_key(1024).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("pem", "algorithm", "bits"),
    [
        (rsa_pem(), "rsa-sha256", 2048),
        (TRADITIONAL, "rsa-sha256", 1024),
        (ed25519_pem(), "ed25519-sha256", None),
        (b"\n# of postroad\n" + ed25519_pem() + b"\n\n", "ed25519-sha256", None),
    ],
)
def test_a_key_names_its_algorithm(pem: bytes, algorithm: str, bits: int | None) -> None:
    key = SigningKey.read(pem)

    assert (key.algorithm, key.bits) == (algorithm, bits)


def without_a_line(pem: bytes) -> bytes:
    lines = pem.splitlines(keepends=True)
    return b"".join([*lines[:5], *lines[6:]])


@pytest.mark.parametrize(
    ("pem", "problem"),
    [
        (b"", "no private key in PEM"),
        (b"\xff\xfe", "no private key in PEM"),
        (without_a_line(rsa_pem()), "no private key in PEM"),
        (rsa_pem().replace(b"MII", b"MIJ"), "no private key in PEM"),
        (ENCRYPTED, "encrypted: remove its password"),
        (EC, "neither an RSA nor an Ed25519 key"),
        (DSA, "neither an RSA nor an Ed25519 key"),
    ],
    ids=["empty", "binary", "short", "wrong", "encrypted", "ec", "dsa"],
)
def test_an_error_says_what_is_wrong_and_nothing_of_the_key(pem: bytes, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        SigningKey.read(pem)

    error = caught.value
    assert (error.__cause__, error.__context__) == (None, None)
    assert not any(line in str(error) for line in pem.decode("latin-1").split())


@pytest.mark.parametrize(("least", "most"), [(2056, 4096), (1024, 2040)])
def test_an_rsa_key_that_verifiers_need_not_take_is_refused(
    monkeypatch: pytest.MonkeyPatch, least: int, most: int
) -> None:
    assert (keys.MIN_BITS, keys.MAX_BITS) == (1024, 4096)
    monkeypatch.setattr(keys, "MIN_BITS", least)
    monkeypatch.setattr(keys, "MAX_BITS", most)

    with pytest.raises(InvalidInput, match=f"{least} to {most} bits, and this one has 2048"):
        SigningKey.read(rsa_pem())


def test_the_repr_of_a_key_has_only_what_is_public() -> None:
    for pem in (rsa_pem(), ed25519_pem()):
        secret = base64.b64encode(base64.b64decode(b"".join(pem.splitlines()[1:-1]))[-32:])

        shown = repr(SigningKey.read(pem))

        assert secret.decode()[:20] not in shown
        assert "lambda" not in shown
