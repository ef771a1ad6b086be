"""Where the owner of a store listens, for the other processes on this machine."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from pathlib import Path

from postroad.embedded.rpc.serving import Serving
from postroad.embedded.rpc.sockets import short_path
from postroad.embedded.rpc.wire import FrameKind, frame
from postroad.embedded.store.owner import OwnedQueue
from postroad.telemetry.logs import logger

log = logger("embedded")

MAX_HANDOVER = timedelta(seconds=5)
"""How long an owner that closes waits for its clients to end what they have begun."""


GOING = frame(0, FrameKind.GOING)


class Server:
    """Serves an owned queue on a Unix socket."""

    def __init__(self, queue: OwnedQueue) -> None:
        self._queue = queue
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], Serving] = {}
        self._is_closing = False

    async def listen(self, path: Path) -> None:
        """Begin to serve. Only this user can connect."""
        self._server = await asyncio.start_unix_server(self._connected, sock=_bind(path))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving = self._connections[task] = Serving(self._queue, reader, writer)
        try:
            if self._is_closing:
                serving.say(GOING)
            await serving.serve()
        except (ConnectionError, asyncio.CancelledError):
            pass  # The client left, or we do: its leases are given back, and that is all.
        except Exception as error:  # whatever it said: others go on
            log.warning("a client was cut off", error=f"{type(error).__name__}: {error}")
        finally:
            del self._connections[task]
            writer.close()

    async def close(self) -> None:
        """Stop serving: let clients end what they have begun, then cut off those that are left."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        for serving in self._connections.values():
            serving.say(GOING)
        if self._connections:
            await asyncio.wait(self._connections, timeout=MAX_HANDOVER.total_seconds())
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)


def _bind(path: Path) -> socket.socket:
    """Bind a socket; one that an earlier owner left is replaced. Raises: OSError."""
    listening = socket.socket(socket.AF_UNIX)
    with short_path(path) as address:
        path.unlink(missing_ok=True)
        listening.bind(address)
        path.chmod(0o600)
    return listening
