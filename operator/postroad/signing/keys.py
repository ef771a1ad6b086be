"""Keys that sign. No error and no repr has anything of a key. Source: RFC 8301 3; RFC 8463."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from postroad.errors import InvalidInput

MIN_BITS, MAX_BITS = 1024, 4096
"""Of an RSA key: verifiers refuse less, and need not take more. Source: RFC 8301 3.2."""

GOOD_BITS = 2048


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key. `algorithm` as the tag `a=` has it; `public` is what the tags `k=` and `p=` of
    its record in DNS have; `bits` is the length of an RSA key."""

    algorithm: str
    public: tuple[str, str]
    sign: Callable[[bytes], bytes] = field(repr=False)
    """Returns the signature of these octets."""
    bits: int | None = None

    @classmethod
    def read(cls, pem: bytes, *, quickly: bool = False) -> SigningKey:
        """Read a private key, RSA or Ed25519, in PEM and without a password. The numbers of an RSA
        key are checked, which takes some tens of milliseconds, unless it is read `quickly`, and not
        to sign. Raises: InvalidInput, which quotes nothing of it."""
        key = _loaded(pem, quickly)
        if isinstance(key, RSAPrivateKey):
            return cls._of_rsa(key)
        if isinstance(key, Ed25519PrivateKey):
            return cls._of_ed25519(key)
        raise InvalidInput("it is neither an RSA nor an Ed25519 key")

    @classmethod
    def _of_rsa(cls, key: RSAPrivateKey) -> SigningKey:
        if not MIN_BITS <= key.key_size <= MAX_BITS:
            raise InvalidInput(
                f"an RSA key has {MIN_BITS} to {MAX_BITS} bits, and this one has {key.key_size}"
            )
        info = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return cls(
            "rsa-sha256",
            ("rsa", base64.b64encode(info).decode()),
            lambda octets: key.sign(octets, PKCS1v15(), hashes.SHA256()),
            key.key_size,
        )

    @classmethod
    def _of_ed25519(cls, key: Ed25519PrivateKey) -> SigningKey:
        raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return cls(
            "ed25519-sha256",
            ("ed25519", base64.b64encode(raw).decode()),
            lambda octets: key.sign(hashlib.sha256(octets).digest()),
        )


def _loaded(pem: bytes, quickly: bool) -> object:
    try:
        return load_pem_private_key(pem, None, unsafe_skip_rsa_key_validation=quickly)
    except TypeError:  # cryptography's word for a password that is missing
        problem = "it is encrypted: remove its password"
    except (ValueError, UnsupportedAlgorithm):
        problem = "it is no private key in PEM"
    # Outside the handler: its error would be the context of this one, and may quote the key.
    raise InvalidInput(problem)
