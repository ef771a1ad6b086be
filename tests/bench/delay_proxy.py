"""A proxy that delays all octets by a fixed time, each way: distance, where the kernel has none.

`python -m bench.delay_proxy PORT MILLISECONDS` listens on loopback and connects to PORT there. Each
piece that arrives leaves when its time has come, whatever comes meanwhile, so the proxy limits how
long octets take and not how many are under way. A connection that opens is delayed by one way too:
its first octets wait like all others, but the handshake is the machine's own.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from pathlib import Path
from typing import cast

TESTS = Path(__file__).parents[1]

LATE = 0.0005
"""Seconds by which epoll, which counts milliseconds, lets a timer be late on average."""


class Side(asyncio.Protocol):
    """One connection of a pair: what arrives here leaves at the other side later."""

    def __init__(self, seconds: float) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._is_timed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._later(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._later(b"")

    def _later(self, data: bytes) -> None:
        self._under_way.append((self._loop.time() + self._seconds, data))
        if not self._is_timed:
            self._is_timed = True
            self._wait()

    def _wait(self) -> None:
        self._loop.call_at(self._under_way[0][0] - LATE, self._pass_on)

    def _pass_on(self) -> None:
        other = None if self.other is None else self.other.transport
        now = self._loop.time() + LATE
        while self._under_way and self._under_way[0][0] <= now:
            _, data = self._under_way.popleft()
            if other is None:
                continue
            other.write(data) if data else other.close()
        self._is_timed = bool(self._under_way)
        if self._is_timed:
            self._wait()


class Entrance(Side):
    """The side of a client, which gets its other side from the port behind the proxy."""

    def __init__(self, port: int, seconds: float) -> None:
        super().__init__(seconds)
        self._port = port
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        assert self.transport is not None
        try:
            _, self.other = await self._loop.create_connection(
                lambda: Side(self._seconds), "127.0.0.1", self._port
            )
            self.other.other = self
        except OSError:
            self.transport.abort()


class DelayProxy:
    """The proxy as a process of its own."""

    def __init__(self, process: Process, port: int) -> None:
        self._process, self.port = process, port

    @classmethod
    async def start(cls, port: int, milliseconds: float) -> DelayProxy:
        """Start one in front of a port of this machine; return when it listens."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.delay_proxy", str(port), str(milliseconds)),
            cwd=TESTS,
            stdout=PIPE,
        )
        assert process.stdout is not None
        return cls(process, int(await process.stdout.readline()))

    async def stop(self) -> None:
        """End it. Idempotent."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def _main(port: int, milliseconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Entrance(port, milliseconds / 1000), "127.0.0.1", 0, backlog=1000
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2])))
