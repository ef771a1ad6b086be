"""An OpenID provider that is certified as one (oidc-provider, of npm), for users whom a test names:
each password is good."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from stack import cache
from stack.cache import Entry
from stack.progress import Progress
from support.issuing import issue
from support.ports import free_port

VERSION = "9.13.3"
SOURCE = Path(__file__).with_suffix(".mjs")


@dataclass(frozen=True)
class OpenIdProvider:
    """A provider that runs. `authorities`: the file that vouches for it."""

    url: str
    authorities: Path


def _program() -> Entry:
    def make(folder: Path, log: Path) -> None:
        install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        cache.run([*install, "--prefix", folder, f"oidc-provider@{VERSION}"], log)
        shutil.copy(SOURCE, folder / "provider.mjs")

    return Entry("openid-provider", cache.key_of(VERSION, SOURCE), "openid-provider: npm", make)


@contextmanager
def an_openid_provider(
    folder: Path,
    client: str,
    redirects: list[str],
    groups: Mapping[str, list[str]],
    *,
    seconds: int = 600,
) -> Iterator[OpenIdProvider]:
    """Run a provider with a public client, whose users are in groups. `seconds`: for which its
    tokens are good."""
    program = _program().ensure(Progress(quiet=True))
    port, issued = free_port(), issue("localhost")
    chain, key = issued.write(folder)
    authorities = folder / "ca.crt"
    authorities.write_bytes(issued.certificate.public_bytes(Encoding.PEM))
    url, file = f"https://localhost:{port}", folder / "provider.json"
    declared = {
        "client_id": client,
        "redirect_uris": redirects,
        "token_endpoint_auth_method": "none",
    }
    given = {"url": url, "port": port, "key": str(key), "cert": str(chain)}
    file.write_text(
        json.dumps({**given, "clients": [declared], "groups": groups, "seconds": seconds})
    )
    with (folder / "provider.log").open("wb") as log:
        running = subprocess.Popen(
            ["node", program / "provider.mjs", file], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait(url, authorities, running, folder / "provider.log")
            yield OpenIdProvider(url, authorities)
        finally:
            running.terminate()
            running.wait()


def _wait(url: str, authorities: Path, running: subprocess.Popen[bytes], log: Path) -> None:
    context = ssl.create_default_context(cafile=str(authorities))
    for _ in range(600):
        assert running.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(
                f"{url}/.well-known/openid-configuration", context=context
            ).close()
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
        else:
            return
    raise AssertionError(log.read_text())
