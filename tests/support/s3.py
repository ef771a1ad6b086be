"""An S3 store that reads uploads as slowly as a test sets, or stops reading, and answers as a
test sets. It ignores bucket and signature."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

RECEIVED_AHEAD = 64 << 10
"""What the kernel may take for a server that does not read."""

CHUNK_BYTES = 64 << 10


class SlowStore:
    """Takes `bytes_per_second` of each body; `stuck_after` bytes it stands still. `refusal` is a
    (status, body) with which everything else is answered; `refusals` are those of single requests,
    by verb or path. `requests` lists verb and path of all that were answered."""

    def __init__(self) -> None:
        self.bytes_per_second = float("inf")
        self.stuck_after: int | None = None
        self.refusal: tuple[int, bytes] | None = None
        self.refusals: dict[str, tuple[int, bytes]] = {}
        self.requests: list[tuple[str, str]] = []
        self.stored = 0
        self.aborted = 0
        self.endpoint = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, request by request."""
        try:
            while head := await self._head(reader):
                verb, path, length, expects = head
                if expects:
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                await self._body(reader, length)
                self._answer(writer, verb, path, length)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client gave up
        finally:
            writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> tuple[str, str, int, bool] | None:
        lines = []
        while line := (await reader.readline()).strip():
            lines.append(line.decode("latin-1"))
        if not lines:
            return None
        verb, path, _ = lines[0].split(" ", 2)
        fields = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        return verb, path, int(fields.get("content-length", "0")), "expect" in fields

    async def _body(self, reader: asyncio.StreamReader, length: int) -> None:
        taken = 0
        while taken < length:
            if self.stuck_after is not None and taken >= self.stuck_after:
                await asyncio.Event().wait()
            chunk = await reader.read(min(CHUNK_BYTES, length - taken))
            if not chunk:
                raise ConnectionResetError
            taken += len(chunk)
            await asyncio.sleep(len(chunk) / self.bytes_per_second)

    def _answer(self, writer: asyncio.StreamWriter, verb: str, path: str, length: int) -> None:
        status, body = 200, b""
        self.requests.append((verb, path))
        refusal = self.refusal or self.refusals.get(verb) or self.refusals.get(path)
        if refusal is not None:
            status, body = refusal
        elif verb == "DELETE":
            self.aborted += 1
        elif verb == "POST" and path.endswith("?uploads"):
            body = b"<R><UploadId>one</UploadId></R>"
        elif verb == "POST":
            body = b"<R><ETag>tag</ETag></R>"
        else:
            self.stored += length
        fields = f'Content-Length: {len(body)}\r\nETag: "tag"\r\n\r\n'
        writer.write(f"HTTP/1.1 {status} So\r\n{fields}".encode() + body)


@asynccontextmanager
async def slow_store() -> AsyncIterator[SlowStore]:
    """Run one on a free port of the loopback interface."""
    store = SlowStore()
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_AHEAD)
    listening.bind(("127.0.0.1", 0))
    served: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        try:
            await store.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the test is over

    server = await asyncio.start_server(serve, sock=listening, limit=CHUNK_BYTES)
    store.endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield store
    finally:
        server.close()
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)
