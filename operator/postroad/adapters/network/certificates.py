"""The intake's certificate, which is read again whenever its files change.

Certificates are renewed while a pod runs: cert-manager writes the Secret, and the kubelet swaps a
symlink to a new folder. To check the files costs two system calls for each TLS handshake.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from postroad.errors import InvalidSettings
from postroad.telemetry.logs import logger
from postroad.tls import server_context

_log = logger("tls")

_Seen = tuple[tuple[int, ...], ...]


class ServerCertificate:
    """A certificate with its chain, and its key (None: in the same file).

    Raises: InvalidSettings when they cannot be used at the start.
    """

    def __init__(self, certificate: Path, key: Path | None = None) -> None:
        self._certificate, self._key = certificate, key
        try:
            self._seen = self._fingerprint()  # before reading, else a change meanwhile stays unseen
            self._context = self._read()
        except OSError as error:  # ssl.SSLError is one
            key_file = "its key in the same file" if key is None else f"the key {key}"
            raise InvalidSettings(
                f"the certificate {certificate} with {key_file} cannot be used: {error}",
                hint="name a PEM file of the certificate and its chain with "
                "POSTROAD_INTAKE_TLS_CERTIFICATE, and of its unencrypted key with "
                "POSTROAD_INTAKE_TLS_KEY",
            ) from error

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a session that begins now. Files that cannot be used are logged
        as an error, once for each change, and the last certificate stays in use."""
        seen = self._fingerprint()
        if seen == self._seen:
            return self._context
        self._seen = seen
        try:
            self._context = self._read()
            _log.info("certificate read again", path=str(self._certificate))
        except OSError as error:
            _log.error(
                "certificate cannot be used, the last one stays",
                path=str(self._certificate),
                error=str(error),
            )
        return self._context

    def _fingerprint(self) -> _Seen:
        return tuple(map(_fingerprint_of, (self._certificate, self._key or self._certificate)))

    def _read(self) -> ssl.SSLContext:
        return server_context(self._certificate, self._key)


def _fingerprint_of(path: Path) -> tuple[int, ...]:
    """Return numbers that differ after a change of the file; empty when it is missing."""
    try:
        its = path.stat()
    except OSError:
        return ()
    return its.st_dev, its.st_ino, its.st_size, its.st_mtime_ns, its.st_ctime_ns
