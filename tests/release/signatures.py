"""Signatures by a key of the one who releases, as `cosign sign-blob --key` and `cosign attest-blob`
make them: ECDSA with P-256 and SHA-256, in DER, in base64. cosign verifies both, openssl the first.

Source: cosign, Signature specification; in-toto Attestation Framework, Envelope (DSSE)."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from release.errors import ReleaseRefused

PASSWORD = "POSTROAD_RELEASE_KEY_PASSWORD"
PUBLIC_KEY = "postroad.pub"
PAYLOAD = "application/vnd.in-toto+json"


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


def sign(file: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    """Write the signature beside a file."""
    path = file.with_name(f"{file.name}.sig")
    path.write_text(f"{_signature(file.read_bytes(), key)}\n")
    return path


def attest(statement: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    """Write a statement of in-toto with its signature as one line beside it, the envelope by which
    a file that it is about is verified."""
    payload = statement.read_bytes()
    signed = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)
    envelope = {
        "payloadType": PAYLOAD,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": "", "sig": _signature(signed, key)}],
    }
    path = statement.with_suffix(".jsonl")
    path.write_text(json.dumps(envelope) + "\n")
    return path


def publish(key: ec.EllipticCurvePrivateKey, folder: Path) -> Path:
    """Write the public key into a folder."""
    path = folder / PUBLIC_KEY
    path.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return path


def _signature(content: bytes, key: ec.EllipticCurvePrivateKey) -> str:
    """Return a signature in base64, the same for the same content and key (RFC 6979)."""
    algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    return base64.b64encode(key.sign(content, algorithm)).decode()
