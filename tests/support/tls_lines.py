"""A port with TLS in front of a server that has none."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

CHUNK_BYTES = 65536


@dataclass
class TlsLine:
    """`certified`: how many connections showed a certificate that its context accepted."""

    target: int
    port: int = 0
    connections: int = 0
    certified: int = 0
    open: set[asyncio.Task[None]] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.certified += bool(writer.get_extra_info("peercert"))
        task = asyncio.create_task(self._carry(reader, writer))
        self.open.add(task)
        task.add_done_callback(self.open.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            copies = _copy(reader, outer), _copy(inner, writer)
            await asyncio.gather(*copies, return_exceptions=True)
        finally:
            for each in (writer, outer):
                each.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def tls_line(target: int, context: ssl.SSLContext) -> AsyncIterator[TlsLine]:
    """Offer TLS on loopback in front of a port. A client such as Spark keeps its connections, so
    they are ended with the line: those of a loop that is gone would stay open."""
    line = TlsLine(target)
    server = await asyncio.start_server(line.accept, "127.0.0.1", 0, ssl=context)
    line.port = server.sockets[0].getsockname()[1]
    try:
        yield line
    finally:
        server.close()
        for each in line.open:
            each.cancel()
        await asyncio.gather(*line.open, return_exceptions=True)
