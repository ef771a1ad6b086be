"""A connection between two servers that records the commands and replies, until STARTTLS hides
them; implicit TLS it ends, and begins anew."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

from support.certificates import Certificates

MAX_NOTE = 4096
"""The octets of one read that are kept; content is dropped."""


class Tap:
    """`async with Tap(port) as tap: … tap.port`; `target` can be changed at any time. `implicit`:
    the certificates of both, where connections begin with TLS."""

    def __init__(self, target: int, implicit: Certificates | None = None) -> None:
        self.target, self._implicit = target, implicit
        self.port = 0
        self.connections = 0
        self.said: list[bytes] = []
        """What clients sent, in pieces as they were read."""
        self.answered: list[bytes] = []
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Tap:
        tls = None if self._implicit is None else self._implicit.server_context()
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for each in self._lines:
            each.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    def forget(self) -> None:
        """Drop the records and begin anew."""
        self.connections, self.said, self.answered = 0, [], []

    @property
    def is_pipelined(self) -> bool:
        """Whether a client sent MAIL and RCPT in one piece."""
        return any(b"MAIL FROM" in each and b"RCPT TO" in each for each in self.said)

    def refusal(self) -> str:
        """Return the first negative reply, code and enhanced code; empty when there was none."""
        found = re.search(rb"(?m)^[45]\d\d( [45]\.\d+\.\d+)?", b"".join(self.answered))
        return found[0].decode() if found else ""

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        self.connections += 1
        beyond: asyncio.StreamWriter | None = None
        try:
            tls = None if self._implicit is None else self._implicit.client_context()
            source, beyond = await asyncio.open_connection("localhost", self.target, ssl=tls)
            await asyncio.gather(
                _carry(reader, beyond, self.said), _carry(source, writer, self.answered)
            )
        except asyncio.CancelledError:
            pass  # streams would log a cancelled handler
        finally:
            self._lines.discard(task)
            for each in (writer, beyond):
                if each is not None:
                    each.transport.abort()


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, notes: list[bytes]
) -> None:
    with suppress(OSError):
        while octets := await reader.read(1 << 16):
            if len(octets) <= MAX_NOTE:
                notes.append(octets)
            writer.write(octets)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
