"""The HTTP port of every pod: `/healthz`, `/readyz`, `/metrics`.

The server runs on the process's own event loop, because `/healthz` reports whether that loop runs:
a blocked one sends no response."""

import asyncio
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from postroad.errors import InvalidSettings
from postroad.telemetry.logs import logger

_log = logger("health")

REQUEST_TIMEOUT_SECONDS = 5.0

MAX_CONNECTIONS = 100
"""At the same time. One more aborts the oldest: clients that send nothing take neither the
descriptors of the process nor the place of a probe, which sends its request at once."""


class Readiness:
    """True if the process can do its work: what `/readyz` reports. A server that is away does not
    count, because it is away for all pods: a Service without endpoints would refuse connections
    where the intake replies 451, and a rollout or the drain of a node would wait for pods that
    cannot become ready. The resource's conditions report servers."""

    def __init__(self) -> None:
        self._check: Callable[[], None] | None = None
        self._is_draining = False

    def opened(self, check: Callable[[], None]) -> None:
        """Call `check` for each probe from now on: an exception of it is the obstacle. It must ask
        no server, because a probe waits for it."""
        self._check = check

    def draining(self) -> None:
        """Report "draining" from now on."""
        self._is_draining = True

    def obstacle(self) -> str | None:
        """Return why the process is not ready, None when it is."""
        if self._is_draining:
            return "draining"
        if self._check is None:
            return "starting"
        try:
            self._check()
        except Exception as error:  # any error of the check means "not ready", none may end it
            _log.debug("not ready", error=str(error))
            return type(error).__name__
        return None


class HealthServer:
    """Answers probes and scrapes. Closed last, so that a draining process is still observed."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}
        """Connections, the oldest first."""

    async def listen(self, host: str, port: int) -> None:
        """Begin to answer; `*` is every address. Raises: InvalidSettings when the port cannot be
        bound."""
        try:
            self._server = await asyncio.start_server(
                self._serve, None if host == "*" else host, port, limit=8192
            )
        except OSError as error:
            raise InvalidSettings(
                f"cannot listen on {host}:{port} for probes: {error.strerror}",
                hint="set another port with POSTROAD_HEALTH_PORT (0 takes any that is free), or "
                "another address with POSTROAD_HEALTH_HOST",
            ) from error
        _log.info("health", address=f"{host}:{self.port}")

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop answering. Idempotent."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self.respond(request))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # malformed or slow request: close without a reply
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def respond(self, request: bytes) -> bytes:
        """Return the response to a request, of which only the head is read."""
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"GET, please\n")
        match path:
            case b"/healthz":
                return _response("200 OK", b"alive\n")
            case b"/readyz":
                obstacle = self._readiness.obstacle()
                if obstacle is None:
                    return _response("200 OK", b"ready\n")
                return _response("503 Service Unavailable", f"{obstacle}\n".encode())
            case b"/metrics":
                return _response("200 OK", generate_latest(), CONTENT_TYPE_LATEST)
        return _response("404 Not Found", b"/healthz, /readyz, /metrics\n")


def _response(status: str, body: bytes, content_type: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
