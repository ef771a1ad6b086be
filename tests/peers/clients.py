"""Mail clients of Debian, in the folder of Postfix' programs. mutt and mailx run `sendmail`, which
is postroad's of this machine: so they run beside it, by the libraries of that folder."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path

from peers.postfix import programs
from peers.server import APART, inside

MSMTP = """\
account default
host localhost
port {port}
domain client.example
auth {mechanism}
user {user}
passwordeval "cat {folder}/secret"
from {sender}
tls on
tls_starttls {starttls}
tls_trust_file {folder}/authority.pem
"""


async def msmtp(
    folder: Path,
    port: int,
    content: bytes,
    recipients: Sequence[str],
    *,
    authority: Path,
    sender: str,
    mechanism: str,
    user: str,
    secret: str,
    starttls: bool = True,
) -> tuple[int, str]:
    """Submit a mail; return the exit code and what was printed."""
    (folder / "secret").write_text(secret)
    (folder / "authority.pem").write_bytes(authority.read_bytes())
    file = folder / "msmtprc"
    file.write_text(
        MSMTP.format(
            folder=folder,
            port=port,
            sender=sender,
            mechanism=mechanism,
            user=user,
            starttls="on" if starttls else "off",
        )
    )
    file.chmod(0o600)
    script = f"exec msmtp -C {file} -- {' '.join(recipients)}"
    return await _run([*map(str, (*APART, *inside(programs(), folder, script)))], folder, content)


async def outside(
    folder: Path, program: str, *words: str, content: bytes, **variables: str
) -> tuple[int, str]:
    """Run a program of the folder on this machine; return as `msmtp`."""
    root = programs()
    (loader,) = root.glob("usr/lib*/ld-linux-*.so.*")
    libraries = [str(each) for each in root.glob("usr/lib/*-linux-gnu*")]
    command = [str(loader), "--library-path", ":".join(libraries), str(root / "usr/bin" / program)]
    return await _run([*command, *words], folder, content, HOME=str(folder), **variables)


async def _run(
    command: Sequence[str], folder: Path, content: bytes, **variables: str
) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=folder, env=os.environ | variables
    )
    out, error = await process.communicate(content)
    assert process.returncode is not None
    return process.returncode, (out + error).decode(errors="replace")
