"""The three drivers with nothing around them, doing what a mail needs in the same order.

What they do is a ceiling: no rules, no translation of errors, no deadlines, no recovery.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import obstore
import pika
from cassandra.cluster import Cluster
from cassandra.cluster import Session as DriverSession
from cassandra.query import BatchStatement, BatchType
from pika.adapters.asyncio_connection import AsyncioConnection

from postroad.adapters.cassandra.connection import Access, cluster_of
from postroad.adapters.cassandra.session import Statement
from postroad.adapters.s3.clients import ObjectClients


class BareCassandra:
    """Prepared statements, one future each."""

    def __init__(self, cluster: Cluster, session: DriverSession, keyspace: str) -> None:
        self._cluster = cluster
        self._session = session
        self._keyspace = keyspace
        self._prepared: dict[Statement, Any] = {}
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, access: Access) -> BareCassandra:
        cluster = cluster_of(access, *(_SECONDS, _SECONDS))
        session = await asyncio.to_thread(cluster.connect)
        return cls(cluster, session, access.keyspace)

    async def prepare(self, *statements: Statement) -> None:
        for each in statements:
            cql = each.cql.replace("{keyspace}", self._keyspace)
            self._prepared[each] = await asyncio.to_thread(self._session.prepare, cql)

    async def execute(self, statement: Statement, values: Sequence[object]) -> Any:
        return await self._answer(self._session.execute_async(self._prepared[statement], values))

    async def execute_together(
        self, statement: Statement, many: Iterable[Sequence[object]]
    ) -> None:
        """Run a statement with many values as one unlogged batch (of one partition)."""
        batch = BatchStatement(BatchType.UNLOGGED)
        for values in many:
            batch.add(self._prepared[statement], values)
        await self._answer(self._session.execute_async(batch))

    async def _answer(self, response: Any) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()
        call = self._loop.call_soon_threadsafe
        response.add_callbacks(
            lambda rows: call(answer.set_result, rows),
            lambda error: call(answer.set_exception, error),
        )
        return await answer

    async def close(self) -> None:
        await asyncio.to_thread(self._cluster.shutdown)


class BareRabbitMQ:
    """One connection, one channel with confirms, one consumer."""

    def __init__(self, parameters: pika.ConnectionParameters) -> None:
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._confirms: dict[int, asyncio.Future[None]] = {}
        self._tag = 0
        self._consumer_tag = ""
        self.inbox: deque[tuple[int, bytes]] = deque()
        self.arrived = asyncio.Event()
        self._connection = AsyncioConnection(
            parameters,
            on_open_callback=lambda c: c.channel(on_open_callback=self._on_channel),
            on_close_callback=lambda *_: self._gone.set_result(None),
        )

    async def ready(self) -> None:
        await self._ready

    def publish(self, exchange: str, key: str, body: bytes) -> asyncio.Future[None]:
        self._tag += 1
        confirm = self._confirms[self._tag] = asyncio.get_running_loop().create_future()
        properties = pika.BasicProperties(delivery_mode=2)
        self.channel.basic_publish(exchange, key, body, properties, mandatory=True)
        return confirm

    def consume(self, queue: str, prefetch: int) -> None:
        self.channel.basic_qos(prefetch_count=prefetch)
        self._consumer_tag = self.channel.basic_consume(queue, self._on_message)

    async def cancel(self) -> None:
        """Take no more. Everything that came must have been acked."""
        cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.channel.basic_cancel(self._consumer_tag, callback=lambda _: cancelled.set_result(None))
        await cancelled

    async def close(self) -> None:
        self._connection.close()
        await self._gone

    def _on_channel(self, channel: Any) -> None:
        self.channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._ready.set_result(None))

    def _on_confirm(self, frame: Any) -> None:
        last, multiple = frame.method.delivery_tag, frame.method.multiple
        tags = [tag for tag in self._confirms if tag <= last] if multiple else [last]
        for tag in tags:
            self._confirms.pop(tag).set_result(None)

    def _on_message(self, _: object, method: Any, __: object, body: bytes) -> None:
        self.inbox.append((method.delivery_tag, body))
        self.arrived.set()


class BareStore:
    """obstore alone."""

    def __init__(self, clients: ObjectClients) -> None:
        self._store = clients.reading
        self._writing = clients.writing

    async def put(self, key: str, body: bytes) -> None:
        await obstore.put_async(self._writing, key, body, use_multipart=False)

    async def get(self, key: str) -> bytes:
        return bytes(await (await obstore.get_async(self._store, key)).bytes_async())

    async def delete(self, key: str) -> None:
        await obstore.delete_async(self._store, key)


_SECONDS = timedelta(seconds=10)
