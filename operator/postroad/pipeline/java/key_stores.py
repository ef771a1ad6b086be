"""Key stores for Java, made from PEM files for one run.

Java trusts authorities of its own; with these stores it trusts those that every other process of
postroad does: of the server, or of the system."""

import re
import ssl
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.utils import CryptographyDeprecationWarning

from postroad.errors import TlsRefused
from postroad.tls import ClientTls, client_context

PASSWORD = "changeit"  # noqa: S105
"""Of each store: Java asks for one. It guards nothing, because the keys lie beside it as PEM, and
the folder is readable for its user alone."""

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_ENCRYPTION = BestAvailableEncryption(PASSWORD.encode())


@dataclass(frozen=True, slots=True)
class KeyStores:
    """The folder of the stores of one run."""

    folder: Path

    def trusted(self, server: str, tls: ClientTls) -> Path:
        """Return a store of the authorities that vouch for a server. Raises: TlsRefused."""
        client_context(tls)  # its errors name the file
        named = [
            pkcs12.PKCS12Certificate(each, str(number).encode())
            for number, each in enumerate(_authorities(tls.ca_file))
        ]
        if not named:
            raise TlsRefused(
                "this system has no certificate authorities",
                hint="install its package ca-certificates, or name a PEM file: POSTROAD_CA_FILE",
            )
        content = pkcs12.serialize_java_truststore(named, _ENCRYPTION)
        return self._written(f"{server}-authorities.p12", content)

    def shown(self, server: str, certificate: Path, key: Path | None) -> Path:
        """Return a store of a certificate that a server is shown, with its key (None: it is in the
        certificate's file). Raises: TlsRefused."""
        client_context(ClientTls(None, certificate, key))
        own, *chain = _certificates(certificate.read_bytes())
        private = load_pem_private_key((key or certificate).read_bytes(), None)
        content = pkcs12.serialize_key_and_certificates(
            b"client",
            private,  # type: ignore[arg-type]  # of a kind that OpenSSL has just accepted
            own,
            chain,
            _ENCRYPTION,
        )
        return self._written(f"{server}-certificate.p12", content)

    def _written(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path


@contextmanager
def key_stores() -> Iterator[KeyStores]:
    """Give a run a folder for its stores, which is removed after it."""
    with TemporaryDirectory(prefix="postroad-stores-") as folder:
        yield KeyStores(Path(folder))


def _authorities(ca_file: Path | None) -> Iterable[x509.Certificate]:
    if ca_file is not None:
        return _certificates(ca_file.read_bytes())
    system = ssl.get_default_verify_paths()
    folder = Path(system.capath) if system.capath else None
    files = [Path(system.cafile)] if system.cafile else []
    files += sorted(folder.glob("*.[0-9]")) if folder is not None and not files else []
    blocks = [block for file in files for block in _BLOCK.findall(file.read_bytes())]
    return dict.fromkeys(each for block in blocks for each in _readable(block))


def _readable(block: bytes) -> list[x509.Certificate]:
    try:
        return _certificates(block)
    except ValueError:  # not by the standard: not trusted
        return []


def _certificates(content: bytes) -> list[x509.Certificate]:
    with warnings.catch_warnings():
        # Of old authorities, such as serial numbers that are not positive.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        return x509.load_pem_x509_certificates(content)
