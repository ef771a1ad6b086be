"""Signatures by a key of the one who releases, as `cosign sign-blob --key` makes them: ECDSA with
P-256 and SHA-256, in DER, in base64. cosign and openssl verify them.

Source: cosign, Signature specification."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from release.errors import ReleaseRefused

PASSWORD = "POSTROAD_RELEASE_KEY_PASSWORD"
PUBLIC_KEY = "postroad.pub"


def load(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key in PEM. Raises: ReleaseRefused."""
    password = os.environ.get(PASSWORD, "").encode() or None
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password)
    except (OSError, ValueError, TypeError) as error:
        raise ReleaseRefused(
            f"KEY={path} is no private key in PEM ({error}); {PASSWORD} has its password"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise ReleaseRefused(
            f"KEY={path} is no key of P-256; make one: openssl genpkey -algorithm EC"
            " -pkeyopt ec_paramgen_curve:P-256 -aes256 -out ~/postroad-release.pem"
        )
    return key


def sign(files: Iterable[Path], key: ec.EllipticCurvePrivateKey) -> list[Path]:
    """Write the signature beside each file, and the public key. The same file and key give the same
    signature (RFC 6979)."""
    made = []
    for each in files:
        algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
        signature = key.sign(each.read_bytes(), algorithm)
        path = each.with_name(f"{each.name}.sig")
        path.write_bytes(base64.b64encode(signature) + b"\n")
        made.append(path)
        folder = each.parent
    public = folder / PUBLIC_KEY
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return [*made, public]
