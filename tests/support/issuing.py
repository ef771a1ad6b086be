"""Certificates as a test wants them, also such as no authority would issue."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from postroad.routing.answers import TlsaRecord

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


class Issued(NamedTuple):
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def public_key(self) -> bytes:
        return self.certificate.public_key().public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )

    def record(self, usage: int, selector: int = 1, matching: int = 1) -> TlsaRecord:
        """Return the TLSA record of it."""
        octets = self.public_key if selector else self.der
        forms = {
            0: octets,
            1: hashlib.sha256(octets).digest(),
            2: hashlib.sha512(octets).digest(),
        }
        return TlsaRecord(usage, selector, matching, forms[matching])

    def write(self, folder: Path, *others: Issued) -> tuple[Path, Path]:
        """Write the chain and the key as PEM files; return both."""
        chain, key = folder / "issued.crt", folder / "issued.key"
        listed = (self, *others)
        chain.write_bytes(b"".join(each.certificate.public_bytes(Encoding.PEM) for each in listed))
        key.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return chain, key


def issue(
    name: str,
    by: Issued | None = None,
    *,
    is_authority: bool = False,
    path_length: int | None = None,
    end: datetime = NOW + DAY,
) -> Issued:
    """Issue a certificate; without `by`, it signs itself. `name`: of the server, or of an
    authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = subject if by is None else by.certificate.subject
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(end, NOW) - DAY)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(is_authority, path_length), critical=True)
    )
    if not is_authority:
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = builder.add_extension(names, critical=False)
    signer = key if by is None else by.key
    return Issued(builder.sign(signer, hashes.SHA256()), key)
