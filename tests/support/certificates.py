"""A certificate authority and a certificate of a server, made by openssl for one test run."""

from __future__ import annotations

import atexit
import shutil
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """Files of one server and of the authority that vouches for it."""

    authority: Path
    chain: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, *names: str) -> Certificates:
        """Make them in `folder`, for these names, or for `localhost`."""
        folder.mkdir(exist_ok=True)
        listed = ",".join(f"DNS:{each}" for each in names or ("localhost",))
        made = cls(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
        ca_key, csr, extensions = folder / "ca.key", folder / "tls.csr", folder / "extensions"
        extensions.write_text(f"subjectAltName={listed}\nbasicConstraints=CA:FALSE\n")
        request = f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -out {csr}"
        signer = f"-CA {made.authority} -CAkey {ca_key} -CAcreateserial"
        for command in (
            f"{request} -x509 -subj /CN=authority -keyout {ca_key} -out {made.authority}",
            f"{request} -subj /CN=localhost -keyout {made.key}",
            f"x509 -req -days 2 -in {csr} -extfile {extensions} {signer} -out {made.chain}",
        ):
            subprocess.run(
                ["openssl", *command.split()], check=True, capture_output=True, timeout=30
            )
        return made

    @classmethod
    def copied(cls, folder: Path) -> Certificates:
        """Copy those of `localhost` that this process has made once."""
        for each in _once().iterdir():
            shutil.copy(each, folder)
        return cls(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")

    def server_context(self) -> ssl.SSLContext:
        """For a server called localhost."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context

    def client_context(self) -> ssl.SSLContext:
        """For clients that trust the authority."""
        return ssl.create_default_context(cafile=self.authority)


@lru_cache(maxsize=1)
def _once() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="postroad-certificates-"))
    atexit.register(shutil.rmtree, folder)
    Certificates.make(folder)
    return folder
