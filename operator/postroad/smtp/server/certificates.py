"""The intake's certificate, which is read again whenever its files change.

Certificates are renewed while a pod runs: cert-manager writes the Secret, and the kubelet swaps a
symlink to a new folder. To check the files costs two system calls for each TLS handshake.
"""

import ssl
from pathlib import Path

from postroad.errors import InvalidSettings
from postroad.file_stamps import FileStamp, stamp_of
from postroad.telemetry.logs import logger
from postroad.tls import server_context

_log = logger("tls")


class ServerCertificate:
    """A certificate with its chain, and its key (None: in the same file). Raises: InvalidSettings
    when they cannot be used at the start."""

    def __init__(self, certificate: Path, key: Path | None = None) -> None:
        self._certificate, self._key = certificate, key
        try:
            self._seen = self._stamps()  # before reading, else a change meanwhile stays unseen
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
        seen = self._stamps()
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

    def _stamps(self) -> tuple[FileStamp, ...]:
        return tuple(map(stamp_of, (self._certificate, self._key or self._certificate)))

    def _read(self) -> ssl.SSLContext:
        return server_context(self._certificate, self._key)
