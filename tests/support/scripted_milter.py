"""A milter of tests: it answers by a script, and may hang, lie or send garbage."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path


def packet(command: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data) + 1) + command + data


def options(version: int = 6, actions: int = 0x7F, steps: int = 0) -> bytes:
    return packet(b"O", struct.pack(">III", version, actions, steps))


CONTINUE = packet(b"c")


@dataclass
class ScriptedMilter:
    """`replies`: by command; octets, or None to hang, or an empty string to break off. `endless`:
    octets that are sent again and again after the command of its first part."""

    negotiates: bytes | None = field(default_factory=options)
    replies: dict[bytes, bytes | None] = field(default_factory=dict)
    endless: tuple[bytes, bytes] | None = None
    has_no_reply: bytes = b""
    """Commands that have none, as negotiated."""

    seen: list[tuple[bytes, bytes]] = field(default_factory=list)
    connections: int = 0
    sent: int = 0
    address: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                octets = await reader.readexactly(length)
                command, data = octets[:1], octets[1:]
                self.seen.append((command, data))
                if command == b"D" or command in self.has_no_reply:
                    continue
                if command == b"Q":
                    return
                while self.endless is not None and command == self.endless[0]:
                    writer.write(self.endless[1])
                    self.sent += len(self.endless[1])
                    await writer.drain()
                reply = self.negotiates if command == b"O" else self.replies.get(command, CONTINUE)
                if reply is None:
                    await reader.read()
                    return
                if not reply:
                    return
                writer.write(reply)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    def commands(self) -> bytes:
        """Return the commands in order, without macros."""
        return b"".join(command for command, _ in self.seen if command != b"D")

    def of(self, *commands: bytes) -> Iterable[bytes]:
        return [data for command, data in self.seen if command in commands]


@asynccontextmanager
async def running(
    milter: ScriptedMilter, folder: Path | None = None
) -> AsyncIterator[ScriptedMilter]:
    """Run a milter on loopback, or on a socket in a folder."""
    if folder is None:
        server = await asyncio.start_server(milter.serve, "127.0.0.1", 0)
        milter.address = f"inet:127.0.0.1:{server.sockets[0].getsockname()[1]}"
    else:
        server = await asyncio.start_unix_server(milter.serve, folder / "m.sock")
        milter.address = f"unix:{folder / 'm.sock'}"
    try:
        yield milter
    finally:
        server.close()
