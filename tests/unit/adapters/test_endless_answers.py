"""Servers whose answers have no end: a client gives up behind so many octets, since the operator
asks the servers that any tenant names."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from cassandra.cluster import NoHostAvailable

from postroad.adapters.cassandra import connection as cassandra
from postroad.adapters.rabbitmq import management
from postroad.adapters.rabbitmq.connection import Access as RabbitMQAccess
from postroad.adapters.s3 import clients as s3
from postroad.adapters.s3.store import Store
from postroad.errors import BlobsUnavailable, BrokerUnavailable

CHUNK = 1 << 20
UNDER_WAY = 16 * CHUNK
"""Octets that the kernel's buffers have, of both ends and some connections."""

MANY = timedelta(seconds=60)
HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nTransfer-Encoding: chunked\r\n\r\n"


class Endless:
    """A server that answers each connection without an end. `http`: else CQL, by one frame of the
    greatest length."""

    def __init__(self, *, http: bool) -> None:
        self.http = http
        self.port = 0
        self.sent = [0]
        """Octets, by connection."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = len(self.sent)
        self.sent.append(0)
        chunk = b"%x\r\n%s\r\n" % (CHUNK, b"a" * CHUNK) if self.http else b"a" * CHUNK
        try:
            asked = await reader.read(CHUNK)
            frame = bytes([0x80 | asked[0], 0, *asked[2:4], 6]) + struct.pack(">i", (1 << 31) - 1)
            writer.write(HTTP if self.http else frame)
            while True:
                writer.write(chunk)
                await writer.drain()
                self.sent[sent] += CHUNK
        except OSError:
            writer.close()


@asynccontextmanager
async def endless(*, http: bool = True) -> AsyncIterator[Endless]:
    made = Endless(http=http)
    async with await asyncio.start_server(made.answer, "127.0.0.1", 0) as server:
        made.port = server.sockets[0].getsockname()[1]
        yield made


async def refusal(work: asyncio.Future[object]) -> BaseException:
    async with asyncio.timeout(MANY.total_seconds()):
        (error,) = await asyncio.gather(work, return_exceptions=True)
    assert isinstance(error, BaseException)
    return error


async def test_an_object_store_is_away_whose_listing_has_no_end() -> None:
    async with endless() as server:
        store = Store(s3.Access(f"http://127.0.0.1:{server.port}", "us-east-1", "a", "b"))
        error = await refusal(asyncio.ensure_future(store.check()))
        await store.close()

    assert isinstance(error, BlobsUnavailable)
    assert str(s3.MAX_ANSWER) in str(error)
    assert max(server.sent) < s3.MAX_ANSWER + UNDER_WAY


async def test_a_management_api_is_away_whose_answer_has_no_end() -> None:
    async with endless() as server:
        url = f"http://127.0.0.1:{server.port}"
        access = RabbitMQAccess.from_uri(
            "amqp://127.0.0.1:1/%2F", username="a", password="b", management_url=url
        )
        asked = management.Management(access)
        error = await refusal(asyncio.ensure_future(asked.nodes()))
        await asked.close()

    assert isinstance(error, BrokerUnavailable)
    assert str(management.MAX_ANSWER) in str(error)
    assert max(server.sent) < management.MAX_ANSWER + UNDER_WAY


async def test_a_cassandra_is_away_whose_frame_has_no_end() -> None:
    async with endless(http=False) as server:
        access = cassandra.Access(("127.0.0.1",), server.port, "dc1", "mail")
        cluster = cassandra.cluster_of(access, MANY, MANY)
        error = await refusal(asyncio.ensure_future(asyncio.to_thread(cluster.connect)))
        await asyncio.to_thread(cluster.shutdown)

    assert isinstance(error, NoHostAvailable)
    assert str(cassandra.MAX_UNREAD) in str(cassandra.translated(error))
    assert max(server.sent) < cassandra.MAX_UNREAD + UNDER_WAY
