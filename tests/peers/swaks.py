"""swaks as a client: one mail from a file, in one session."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path

from peers.postfix import programs
from peers.server import APART, inside

NAME = "swaks"


async def send(
    folder: Path,
    port: int,
    sender: str,
    recipients: Sequence[str],
    content: bytes,
    *options: str,
) -> str:
    """Send a mail to a server on 127.0.0.1; return the transcript of the session."""
    data = folder / "data"
    # Without the end, swaks would take a lone dot at the end for it.
    data.write_bytes(content + b".\r\n")
    words = [
        *("swaks", "--server", "127.0.0.1", "--port", str(port), "--helo", "swaks.example"),
        *("--from", sender or "'<>'", "--to", ",".join(recipients), "--data", f"@{data}"),
        *("--suppress-data", *options),
    ]
    process = await asyncio.create_subprocess_exec(
        *map(str, (*APART, *inside(programs(), folder, f"exec {' '.join(words)}"))),
        stdout=PIPE,
        stderr=PIPE,
    )
    out, error = await process.communicate()
    return out.decode(errors="replace") + error.decode(errors="replace")
