"""The ceiling: what the servers have to do for a mail, asked for by the bare drivers.

In: put, insert, publish and confirm. Out: mark read, get, mark written, delete, ack. In this order,
each when the one before was answered, as many mails at a time as ours has; nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from bench.bare_clients import BareCassandra, BareRabbitMQ, BareStore
from bench.queue_setup import BenchServers, queue_names
from postroad.adapters.cassandra import mark_statements, statements
from postroad.adapters.cassandra.view import marks as mark_rows
from postroad.adapters.cassandra.view import rows
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.entries import Entry, EntryKey, Traits, place
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.references import Reference, encode
from postroad.domain.values.identifiers import Identifiers

HOUR = timedelta(hours=1)
BUCKETS = 3
STATEMENTS = (statements.INSERT_ROW, mark_statements.SELECT_MARK, mark_statements.MARK_DELIVERED)
ENTRY = Entry(
    key=EntryKey(datetime(2026, 1, 1, tzinfo=UTC), 0, UUID(int=0)),
    mail_id=UUID(int=0),
    envelope=Envelope("a@example.org", ("b@example.net",), "measured"),
    blob_key="",
    size_bytes=2000,
    accepted_at=datetime(2026, 1, 1, tzinfo=UTC),
    enqueued_at=datetime(2026, 1, 1, tzinfo=UTC),
)
BODY = encode(Reference.to(ENTRY, claim=False))
"""As long as our messages are; a mail's id stands before it."""


class BareMail:
    """Mails on their way through the three servers. `content` is theirs."""

    def __init__(
        self,
        view: BareCassandra,
        broker: BareRabbitMQ,
        store: BareStore,
        name: QueueName,
        content: bytes,
    ) -> None:
        self._view = view
        self._broker = broker
        self._store = store
        self._name = name
        self._content = content
        self._ids = Identifiers(MachineClock().now, SystemRandomness().bits)
        self._keys: dict[bytes, EntryKey] = {}

    async def enter(self) -> None:
        """Bring one mail in."""
        key = place(self._ids.new(), HOUR, BUCKETS)
        entry = replace(ENTRY, key=key, mail_id=key.enqueue_id, blob_key=f"bare/{key.enqueue_id}")
        self._keys[key.enqueue_id.bytes] = key
        await self._store.put(entry.blob_key, self._content)
        values = (str(self._name), *rows.entry_values(entry))
        await self._view.execute(statements.INSERT_ROW, values)
        await self._broker.publish(self._name.exchange, "work", key.enqueue_id.bytes + BODY)

    async def leave(self, mails: int, in_flight: int, latencies: list[float]) -> None:
        """Take so many mails out; a latency is from the mark that was read to the ack."""
        self._broker.consume(self._name.work_queue, in_flight)
        async with asyncio.TaskGroup() as leaving:
            for _ in range(mails):
                while not self._broker.inbox:
                    self._broker.arrived.clear()
                    await self._broker.arrived.wait()
                leaving.create_task(self._leave(*self._broker.inbox.popleft(), latencies))
        await self._broker.cancel()

    async def _leave(self, tag: int, body: bytes, latencies: list[float]) -> None:
        key = self._keys.pop(body[:16])
        place_of = rows.key_values(str(self._name), key)
        await self._view.execute(mark_statements.SELECT_MARK, place_of)
        began = time.perf_counter()
        assert await self._store.get(f"bare/{key.enqueue_id}") == self._content
        marked = (*place_of, *mark_rows.trait_values(Traits(("example.net",))), datetime.now(UTC))
        await self._view.execute(mark_statements.MARK_DELIVERED, marked)
        await self._store.delete(f"bare/{key.enqueue_id}")
        self._broker.channel.basic_ack(tag)
        latencies.append(time.perf_counter() - began)


@asynccontextmanager
async def bare_mail(where: BenchServers, content: bytes) -> AsyncIterator[BareMail]:
    """Open the drivers, on a queue of their own."""
    async with queue_names(where) as name:
        await where.servers.broker(name).declare()
        view, broker = await where.bare_cassandra(), await where.bare_rabbitmq()
        try:
            await view.prepare(*STATEMENTS)
            yield BareMail(view, broker, where.bare_store(), name, content)
        finally:
            await broker.close()
            await view.close()
