"""TLS contexts for both sides of a connection, and TLS errors in postroad's words.

A certificate that is not accepted, or TLS on one side only, lasts until an administrator changes a
setting: such an error is permanent, whichever driver reports it. Drivers report it as text, wrapped
in errors of their own."""

import re
import ssl
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from postroad.errors import TlsRefused
from postroad.file_stamps import FileStamp, stamp_of

_NAME = re.compile(r"mismatch|doesn't match|NotValidForName|not valid for name", re.IGNORECASE)
_CERTIFICATE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|InvalidCertificate|certificate verify failed|doesn't match",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"(?:certificate verify failed: |InvalidCertificate\(\s*)([^(\[{\",)]+)", re.IGNORECASE
)
_NO_TLS = re.compile(r"WRONG_VERSION_NUMBER|HTTP_REQUEST|InvalidContentType|wrong version number")


_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)

OLDEST_TLS = ssl.TLSVersion.TLSv1_2
"""On both sides of SMTP. Source: RFC 8996."""


class ServerContext(ssl.SSLContext):
    """The context of a server."""

    certificate: str
    """The server's certificate in PEM form, to which clients bind logins (RFC 5929 4)."""


class ClientAuthorities(NamedTuple):
    """A file of the authorities that vouch for certificates of clients, and whether a client needs
    one."""

    file: Path
    is_required: bool


def server_context(
    certificate: Path, key: Path | None = None, clients: ClientAuthorities | None = None
) -> ServerContext:
    """Return the context of a server with this certificate and its chain. `key` None: the key is in
    the certificate's file. `clients`: None, they are asked for no certificate. Raises: OSError,
    ssl.SSLError; also for a key that is encrypted."""
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = OLDEST_TLS
    context.load_cert_chain(certificate, key, password="")  # else OpenSSL asks at the terminal
    if clients is not None:
        context.load_verify_locations(clients.file)
        context.verify_mode = ssl.CERT_REQUIRED if clients.is_required else ssl.CERT_OPTIONAL
    own = _PEM.search(certificate.read_text("ascii", "replace"))
    context.certificate = own[0] if own else ""
    return context


class Encryption(Enum):
    """True if connections to a server are encrypted, and what is checked of its certificate, named
    as PostgreSQL's `sslmode`."""

    DISABLED = "disabled"
    VERIFY_CA = "verify-ca"
    """Its authority, for servers whose certificates lack the names that they are reached by."""
    VERIFY_FULL = "verify-full"
    """Its authority and its name."""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files of a client: the authorities that it trusts (None: the system's), and the
    certificate that it shows, if any, with its key (None: it is in the certificate's file)."""

    ca_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


SYSTEM_TLS = ClientTls()
"""The system's authorities, and no client certificate."""


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """Return a context that checks certificates and names. Raises: TlsRefused."""
    try:
        context = ssl.create_default_context(cafile=tls.ca_file and str(tls.ca_file))
    except (OSError, ValueError) as error:
        raise TlsRefused(
            f"the certificate authorities in {tls.ca_file} cannot be read: {error}",
            hint="name a PEM file with POSTROAD_CA_FILE, or leave it out for the system's",
        ) from error
    if tls.certificate is not None:
        try:
            context.load_cert_chain(tls.certificate, tls.key, password="")
        except (OSError, ValueError) as error:
            raise TlsRefused(
                f"the client certificate {tls.certificate} cannot be used: {error}",
                hint="name PEM files of a certificate and of its unencrypted key",
            ) from error
    return context


def verifying_context(ca_file: Path | None, oldest: ssl.TLSVersion = OLDEST_TLS) -> ssl.SSLContext:
    """Return a context that checks certificates and names, for a connection that begins now: the
    same one until the file of authorities changes, which costs a system call. Raises: TlsRefused.
    """
    return _context_at(() if ca_file is None else stamp_of(ca_file), ca_file, oldest)


@lru_cache(maxsize=64)
def _context_at(_: FileStamp, ca_file: Path | None, oldest: ssl.TLSVersion) -> ssl.SSLContext:
    context = client_context(ClientTls(ca_file))
    context.minimum_version = oldest
    return context


def authorities(ca_file: Path) -> bytes:
    """Return a file of authorities, for drivers that make their own context. Raises: TlsRefused."""
    client_context(ClientTls(ca_file))
    return ca_file.read_bytes()


def refusal(server: str, message: str) -> TlsRefused | None:
    """Return our error where a driver's error message is about TLS, else None.

    >>> str(refusal("RabbitMQ", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
    ...                         "self-signed certificate (_ssl.c:1006)"))
    "RabbitMQ's certificate is not accepted: self-signed certificate"
    >>> refusal("RabbitMQ", "Connection reset by peer")
    """
    if _CERTIFICATE.search(message):
        found = _REASON.search(message)
        reason = found[1].strip(" .,") if found else "it is for another name"
        if _NAME.search(message):
            hint = f"name {server} as its certificate does, or give it a certificate for this name"
        else:
            hint = (
                "give the authority that signed it: POSTROAD_CA_FILE, or `tls.caRef` of a resource"
            )
        return TlsRefused(f"{server}'s certificate is not accepted: {reason}", hint=hint)
    if _NO_TLS.search(message):
        return TlsRefused(
            f"{server} does not offer TLS at this address",
            hint="set the port that offers it, or leave TLS out of its settings",
        )
    return None
