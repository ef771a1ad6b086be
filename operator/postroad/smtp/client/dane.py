"""Compares a next hop's certificate with TLSA records (DANE), instead of authorities.

Source: RFC 6698 2.1; RFC 7671; RFC 7672 3."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from postroad.errors import InvalidInput
from postroad.routing.answers import TlsaMatching, TlsaRecord, TlsaSelector, TlsaUsage

MAX_CERTIFICATES = 10
"""Of what a next hop shows."""


class CertificateRefused(InvalidInput):
    """A next hop's certificate matches none of its TLSA records."""


def verify(shown: Sequence[bytes], name: str, records: Sequence[TlsaRecord], now: datetime) -> None:
    """Check what a next hop showed, its own certificate first, in DER. Raises: CertificateRefused.
    A record of its own certificate (usage 3) alone decides: neither the name nor the time counts
    (RFC 7672 3.1.1). One of an authority (usage 2) makes that the only one that is trusted, and the
    certificate must be for this name (3.1.2)."""
    try:
        certificates = [x509.load_der_x509_certificate(each) for each in shown[:MAX_CERTIFICATES]]
    except ValueError as error:
        raise CertificateRefused("the next hop's certificate cannot be read") from error
    if not certificates:
        raise CertificateRefused("the next hop shows no certificate")
    own, *others = certificates
    if any(_matches(own, each) for each in records if each.usage == TlsaUsage.DANE_EE):
        return
    try:
        trusted = _trusted(others, [each for each in records if each.usage == TlsaUsage.DANE_TA])
        if not trusted:
            raise CertificateRefused("the next hop's certificate matches no TLSA record")
        _verify_chain(own, others, trusted, name, now)
    except CertificateRefused:
        raise
    except (VerificationError, InvalidSignature, UnsupportedAlgorithm, ValueError) as error:
        raise CertificateRefused(
            f"the next hop's certificate does not follow from its TLSA record: {error}"
        ) from error


def _trusted(
    others: Sequence[x509.Certificate], records: Sequence[TlsaRecord]
) -> list[x509.Certificate]:
    """Return the authorities that records name; one that stands in a record whole need not be
    shown. Source: RFC 7671 5.2."""
    whole: list[x509.Certificate] = []
    for each in records:
        if (each.selector, each.matching) == (TlsaSelector.CERTIFICATE, TlsaMatching.OCTETS):
            with suppress(ValueError):  # it is no certificate, and the other records count
                whole.append(x509.load_der_x509_certificate(each.data))
    return whole + [each for each in others if any(_matches(each, record) for record in records)]


def _matches(certificate: x509.Certificate, record: TlsaRecord) -> bool:
    if record.selector == TlsaSelector.PUBLIC_KEY:
        selected = certificate.public_key().public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )
    else:
        selected = certificate.public_bytes(Encoding.DER)
    if record.matching == TlsaMatching.SHA_256:
        selected = hashlib.sha256(selected).digest()
    elif record.matching == TlsaMatching.SHA_512:
        selected = hashlib.sha512(selected).digest()
    return selected == record.data


def _verify_chain(
    own: x509.Certificate,
    others: Sequence[x509.Certificate],
    trusted: list[x509.Certificate],
    name: str,
    now: datetime,
) -> None:
    verifier = (
        PolicyBuilder()
        .store(Store(trusted))
        .time(now)
        .extension_policies(ca_policy=_of_authorities(), ee_policy=_of_servers())
        .build_server_verifier(x509.DNSName(name))
    )
    verifier.verify(own, list(others))


def _of_authorities() -> ExtensionPolicy:
    """As the field has them: authorities of one's own lack much that those of browsers have."""
    return (
        ExtensionPolicy.permit_all()
        .require_present(x509.BasicConstraints, Criticality.AGNOSTIC, _may_sign)
        .may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, _signs_certificates)
    )


def _of_servers() -> ExtensionPolicy:
    return (
        ExtensionPolicy.permit_all()
        .require_present(x509.SubjectAlternativeName, Criticality.AGNOSTIC, None)
        .may_be_present(x509.ExtendedKeyUsage, Criticality.AGNOSTIC, _serves)
    )


def _may_sign(_: object, __: object, extension: x509.BasicConstraints) -> None:
    if not extension.ca:
        raise ValueError("a certificate of no authority signed another one")


def _signs_certificates(_: object, __: object, extension: x509.KeyUsage | None) -> None:
    if extension is not None and not extension.key_cert_sign:
        raise ValueError("an authority's key is not for certificates")


def _serves(_: object, __: object, extension: x509.ExtendedKeyUsage | None) -> None:
    usages = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    if extension is not None and not usages & set(extension):
        raise ValueError("the certificate is not for servers")
