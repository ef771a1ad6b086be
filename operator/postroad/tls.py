"""TLS with clients and with the outside servers: the authorities that vouch for these, and what a
refusal means.

A certificate that is not accepted stays so until a person changes something, whichever driver
found out; so do two sides of which one speaks TLS and the other does not. Drivers hand such errors
on as text, wrapped in errors of their own.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from postroad.errors import TlsRefused

_NAME = re.compile(r"mismatch|doesn't match|NotValidForName|not valid for name", re.IGNORECASE)
_CERTIFICATE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|InvalidCertificate|certificate verify failed|doesn't match",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"(?:certificate verify failed: |InvalidCertificate\(\s*)([^(\[{\",)]+)", re.IGNORECASE
)
_NO_TLS = re.compile(r"WRONG_VERSION_NUMBER|HTTP_REQUEST|InvalidContentType|wrong version number")


OLDEST_TLS = ssl.TLSVersion.TLSv1_2
"""On both sides of SMTP. Source: RFC 8996."""


def server_context(certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    """Return a context that shows clients a certificate with its chain; its key is in a file of its
    own or in the same one. Raises: OSError, ssl.SSLError; also for a key that is encrypted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = OLDEST_TLS
    context.load_cert_chain(certificate, key, password="")  # else OpenSSL asks at the terminal
    return context


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that checks certificates and names, by the authorities of the file or by
    the system's. Raises: TlsRefused."""
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ValueError) as error:
        raise TlsRefused(
            f"the certificate authorities in {ca_file} cannot be read: {error}",
            hint="name a PEM file with POSTROAD_CA_FILE, or leave it out for the system's",
        ) from error


def authorities(ca_file: Path) -> bytes:
    """Return the content of a file of authorities, for drivers that make their own context.
    Raises: TlsRefused."""
    client_context(ca_file)
    return ca_file.read_bytes()


def refusal(server: str, said: str) -> TlsRefused | None:
    """Return our error where a driver's words are about TLS, else None.

    >>> str(refusal("RabbitMQ", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
    ...                         "self-signed certificate (_ssl.c:1006)"))
    "RabbitMQ's certificate is not accepted: self-signed certificate"
    >>> refusal("RabbitMQ", "Connection reset by peer")
    """
    if _CERTIFICATE.search(said):
        reason = _REASON.search(said)
        told = reason[1].strip(" .,") if reason else "its name is another"
        if _NAME.search(said):
            hint = f"name {server} as its certificate does, or give it a certificate for this name"
        else:
            hint = "give the authority that signed it: POSTROAD_CA_FILE, or `ca.crt` in the Secret"
        return TlsRefused(f"{server}'s certificate is not accepted: {told}", hint=hint)
    if _NO_TLS.search(said):
        return TlsRefused(
            f"{server} speaks no TLS at this address",
            hint="name the port that does, or leave TLS out of its settings",
        )
    return None
