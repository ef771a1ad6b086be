"""Proxies in front of all servers of an operator process, which kill it behind one of its requests:
the server gets that request whole, and the operator neither its answer nor anything more.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from postroad.adapters.kubernetes.api_server import ApiServer
from stack.forwarder import CHUNK_BYTES, Forwarder
from support.api_proxy import api_proxy
from support.recording_api import is_write
from support.sent_requests import AmqpRequests, CqlRequests, HttpRequests, SentRequests

ANSWER_SECONDS = 0.5
"""How long a server keeps its connection to a dead operator, to carry the last request out."""


@dataclass
class Positions:
    """The requests of one operator process at a time that may change something, in the order in
    which the proxies forwarded them. `kill_at`: the position behind which it dies."""

    pid: int = 0
    kill_at: int | None = None
    names: list[str] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)
    killed: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, kill_at: int | None) -> None:
        """Count from 0 on."""
        self.names, self.kill_at = [], kill_at
        self.killed.clear()

    def passed(self, pid: int, server: str, name: str) -> None:
        """Count a request that the server of an operator has; perhaps kill the operator."""
        if pid != self.pid:
            return
        self.names.append(f"{server}: {name}")
        if len(self.names) - 1 == self.kill_at:
            self.dead.add(pid)
            os.kill(pid, signal.SIGKILL)
            self.killed.set()


class KillingForwarder(Forwarder):
    """Forwards whole requests, and none of a dead operator."""

    def __init__(
        self, server: str, port: int, positions: Positions, split: Callable[[], SentRequests]
    ) -> None:
        super().__init__(port)
        self._name = server
        self._positions = positions
        self._split = split

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests, pid = self._split(), self._positions.pid
        while chunk := await reader.read(CHUNK_BYTES):
            for piece, name in requests.feed(chunk):
                if pid in self._positions.dead:
                    break
                writer.write(piece)
                await writer.drain()
                if name is not None:
                    self._positions.passed(pid, self._name, name)
        if pid in self._positions.dead:
            await asyncio.sleep(ANSWER_SECONDS)
        writer.write_eof()


def _is_effect(method: str, target: str) -> bool:
    """Whether a request may change something but the Lease."""
    return is_write(method, target) and "/leases" not in target


def _is_store_write(method: str, target: str) -> bool:
    return method not in ("GET", "HEAD")


SPLIT: Mapping[str, Callable[[], SentRequests]] = {
    "kubernetes": lambda: HttpRequests(_is_effect),
    "rabbitmq": AmqpRequests,
    "management": lambda: HttpRequests(_is_store_write),
    "cassandra": CqlRequests,
    "s3": lambda: HttpRequests(_is_store_write),
}


@asynccontextmanager
async def killing_proxies(
    api: ApiServer, variables: Mapping[str, str], positions: Positions
) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """Yield the address of the API server and the POSTROAD_* variables with those of proxies."""
    async with AsyncExitStack() as stack:
        ports = {
            "kubernetes": urlsplit((await stack.enter_async_context(api_proxy(api))).url).port,
            "rabbitmq": urlsplit(variables["POSTROAD_RABBITMQ_URI"]).port,
            "management": urlsplit(variables["POSTROAD_RABBITMQ_MANAGEMENT_URL"]).port,
            "cassandra": int(variables["POSTROAD_CASSANDRA_PORT"]),
            "s3": urlsplit(variables["POSTROAD_S3_ENDPOINT"]).port,
        }
        at: dict[str, int] = {}
        for server, port in ports.items():
            assert port is not None, server
            proxy = KillingForwarder(server, port, positions, SPLIT[server])
            await proxy.start()
            stack.push_async_callback(proxy.close)
            at[server] = proxy.port
        yield (
            f"http://127.0.0.1:{at['kubernetes']}",
            {
                **variables,
                "POSTROAD_RABBITMQ_URI": _at(variables["POSTROAD_RABBITMQ_URI"], at["rabbitmq"]),
                "POSTROAD_RABBITMQ_MANAGEMENT_URL": _at(
                    variables["POSTROAD_RABBITMQ_MANAGEMENT_URL"], at["management"]
                ),
                "POSTROAD_CASSANDRA_PORT": str(at["cassandra"]),
                "POSTROAD_S3_ENDPOINT": _at(variables["POSTROAD_S3_ENDPOINT"], at["s3"]),
            },
        )


def _at(address: str, port: int) -> str:
    """Return an address with another port of loopback."""
    parts = urlsplit(address)
    login = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login[0]}{login[1]}127.0.0.1:{port}").geturl()
