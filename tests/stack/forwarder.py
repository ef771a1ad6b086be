"""Lets pods reach servers that listen on loopback only: copies TCP connections, and can cut them.

`Forwarder` is one listening port and its target; tests also use it as a connection that can be cut.
As a process (`python forwarder.py FILE HOST`) it listens on the host's end of the cluster's own
link, for every port that a JSON file names, and follows changes of that file. It refuses
connections while the target is down, and copies them again when the target is back on its port.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 65536
POLL_SECONDS = 0.1


class Forwarder:
    """Accepts connections on one address and copies them to another."""

    def __init__(self, target_port: int, target_host: str = "127.0.0.1") -> None:
        """Take the target; nothing listens yet."""
        self._target = (target_host, target_port)
        self._address: tuple[str, int] | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    @property
    def port(self) -> int:
        """The port that it listens on, also while it is cut."""
        assert self._address is not None, "not started"
        return self._address[1]

    @property
    def target_port(self) -> int:
        """The port it copies to."""
        return self._target[1]

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. With port 0 the kernel chooses a port, which the forwarder keeps from then on."""
        self._server = await asyncio.start_server(self._accept, host, port)
        self._address = (host, self._server.sockets[0].getsockname()[1])

    async def cut(self) -> None:
        """Reset all connections and refuse new ones. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def silence(self) -> None:
        """Copy nothing, as a network that drops every packet: connections stay, and what is on its
        way arrives after `mend`."""
        self._flowing.clear()

    async def mend(self) -> None:
        """Copy everything again, on the same port. Idempotent."""
        self._flowing.set()
        if self._server is None and self._address is not None:
            await self.start(*self._address)

    async def close(self) -> None:
        """End it for good."""
        await self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._flowing.wait()
            target_reader, target_writer = await self._open()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._send(reader, target_writer))
                    group.create_task(self._copy(target_reader, writer))
                for end in (target_writer, writer):
                    end.close()
                    await end.wait_closed()
            finally:
                _reset(target_writer)
        except* OSError:
            pass  # an end that closes closes the other one too
        finally:
            _reset(writer)
            self._connections.discard(task)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._target)

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy what a client sends."""
        await self._copy(reader, writer)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self._flowing.wait()
            writer.write(chunk)
            await writer.drain()
        await self._flowing.wait()
        if writer.can_write_eof():
            with contextlib.suppress(OSError):
                writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close at once what is still open, so that the other end sees an error instead of an end."""
    if not writer.is_closing():
        connection = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass(frozen=True)
class Forward:
    """A port to be reached from pods."""

    port: int
    cut: bool = False


def read_forwards(path: Path) -> dict[int, Forward]:
    """Read the file of ports; empty when there is none."""
    try:
        entries = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return {entry["port"]: Forward(**entry) for entry in entries}


def write_forwards(path: Path, forwards: Mapping[int, Forward]) -> None:
    """Write the file of ports, whole or not at all."""
    entries = [{"port": forward.port, "cut": forward.cut} for forward in forwards.values()]
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(entries))
    partial.rename(path)


async def follow(path: Path, host: str) -> None:
    """Forward what the file names, for ever."""
    active: dict[int, Forwarder] = {}
    seen: tuple[int, int] | None = None
    while True:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            if seen != (status.st_mtime_ns, status.st_ino):
                await _reconcile(active, read_forwards(path), host)
                seen = (status.st_mtime_ns, status.st_ino)
        await asyncio.sleep(POLL_SECONDS)


async def _reconcile(
    active: dict[int, Forwarder], wanted: Mapping[int, Forward], host: str
) -> None:
    for port in active.keys() - wanted.keys():
        await active.pop(port).close()
    for port, forward in wanted.items():
        if port not in active:
            active[port] = Forwarder(port)
            await active[port].start(host, port)
        if forward.cut:
            await active[port].cut()
        else:
            await active[port].mend()


if __name__ == "__main__":
    asyncio.run(follow(Path(sys.argv[1]), sys.argv[2]))
