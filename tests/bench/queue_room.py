"""The distributed queue beside its bare drivers: same bytes, same order, same number in flight.

A mail needs, at the least: put, insert, publish to enter; mark read, get, mark written, delete, ack
to leave. Ours and theirs run by turns, and the medians are compared. What a mail costs in requests
is counted at the ports and held against those numbers.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import uvloop

import servers
from bench.bare_clients import BareCassandra, BareRabbitMQ, BareStore
from bench.results import Result, compared
from postroad import Mail, open_queue
from postroad.adapters.cassandra import rows, statements
from postroad.adapters.cassandra.session import Session
from postroad.adapters.machine.clocks import MachineChance, MachineClock
from postroad.adapters.rabbitmq.access import parameters_of
from postroad.adapters.rabbitmq.publisher import Publisher
from postroad.adapters.s3.access import Access as S3Access
from postroad.adapters.s3.objects import Objects
from postroad.bootstrap import connect
from postroad.domain.identifiers import Identifiers
from postroad.domain.mail import Envelope
from postroad.domain.names import QueueName
from postroad.domain.slices import TurnKey, place
from postroad.domain.turns import Traits, Turn
from postroad.ports.queue import Item, MailQueue
from postroad.settings import Settings, from_environment
from postroad.telemetry import logs

MAILS = int(os.environ.get("BENCH_MAILS", "1000"))
IN_FLIGHT = int(os.environ.get("BENCH_IN_FLIGHT", "100"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
CONTENT = b"Subject: measured\r\n\r\n" + os.urandom(5000).hex().encode()
CASE = f"{len(CONTENT) // 1000} kB, {IN_FLIGHT} in flight"
PEER = "bare pika, cassandra-driver, obstore"
HOUR = timedelta(hours=1)
MINIMUM = {"enqueue": 3, "dequeue": 5}
"""Requests a mail cannot do without (see above)."""


def measure() -> list[Result]:
    """Measure everything. Needs the three servers."""
    logs.configure("WARNING")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure())


class Stopwatch:
    """Rates and CPU of rounds."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.milliseconds: list[float] = []

    async def time(self, work: Awaitable[object]) -> None:
        started, spent = time.perf_counter(), _cpu()
        await work
        self.rates.append(MAILS / (time.perf_counter() - started))
        self.milliseconds.append(1000 * (_cpu() - spent) / MAILS)


async def _measure() -> list[Result]:
    keyspace = servers.fresh()
    given = {"POSTROAD_CASSANDRA_KEYSPACE": keyspace, "POSTROAD_S3_BUCKET": f"bench-{keyspace}"}
    settings = from_environment({**os.environ, **given})
    watches = {
        name: Stopwatch() for name in ("our enqueue", "our dequeue", "bare enqueue", "bare dequeue")
    }
    async with _ours(settings) as queue, _bare(settings) as bare:
        for _ in range(ROUNDS):
            await watches["our enqueue"].time(_enqueue(queue))
            await watches["bare enqueue"].time(bare.enter_all())
            await watches["our dequeue"].time(_dequeue(queue))
            await watches["bare dequeue"].time(bare.leave_all())
        counts = await _requests(queue)
    results = []
    for step in ("enqueue", "dequeue"):
        ours, theirs = watches[f"our {step}"], watches[f"bare {step}"]
        results += [
            compared(step, CASE, "mails/s", ours.rates, PEER, theirs.rates),
            compared(
                f"{step} CPU",
                CASE,
                "ms/mail",
                ours.milliseconds,
                PEER,
                theirs.milliseconds,
                less_is_better=True,
            ),
            compared(
                f"{step} requests",
                CASE,
                "requests/mail",
                [counts[step] / MAILS],
                "the least there can be",
                [MINIMUM[step]],
                less_is_better=True,
            ),
        ]
    return results


@asynccontextmanager
async def _ours(settings: Settings) -> AsyncIterator[MailQueue]:
    name = QueueName("bench", servers.fresh())
    async with open_queue(f"distributed://{name}", create=True, settings=settings) as queue:
        yield queue
    await _remove(settings, name)


async def _remove(settings: Settings, name: QueueName) -> None:
    made = connect(settings)
    await made.broker(name).delete()
    await made.blobs(settings.s3.bucket or "").drop()
    await made.close()
    session = servers.session(settings.cassandra.keyspace)
    await session.run("DROP KEYSPACE IF EXISTS {keyspace}")
    await session.close()


async def _enqueue(queue: MailQueue) -> None:
    mail = Mail("a@example.org", ("b@example.net",), CONTENT, name="measured")
    await _in_flight(lambda _: queue.enqueue(mail))


async def _dequeue(queue: MailQueue) -> None:
    async def deliver(item: Item) -> None:
        assert await item.content() == CONTENT
        await item.done()

    async with asyncio.TaskGroup() as deliveries:
        left = MAILS
        async for item in queue.dequeue(IN_FLIGHT):
            deliveries.create_task(deliver(item))
            left -= 1
            if not left:
                break


async def _in_flight(work: Callable[[int], Awaitable[object]]) -> None:
    numbers = iter(range(MAILS))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


class Bare:
    """What `_ours` does, by the drivers alone."""

    def __init__(
        self, view: BareCassandra, broker: BareRabbitMQ, store: BareStore, name: QueueName
    ) -> None:
        self._view = view
        self._broker = broker
        self._store = store
        self._name = name
        self._ids = Identifiers(MachineClock().now, MachineChance().bits)
        self._keys: dict[bytes, TurnKey] = {}
        self._consuming = False

    async def enter_all(self) -> None:
        await _in_flight(self._enter)

    async def leave_all(self) -> None:
        if not self._consuming:
            self._broker.consume(self._name.work_queue, IN_FLIGHT)
            self._consuming = True
        async with asyncio.TaskGroup() as leaving:
            for _ in range(MAILS):
                while not self._broker.inbox:
                    self._broker.arrived.clear()
                    await self._broker.arrived.wait()
                leaving.create_task(self._leave(*self._broker.inbox.popleft()))

    async def _enter(self, _: int) -> None:
        key = place(self._ids.new(), HOUR, 1)
        turn = replace(TURN, key=key, mail_id=key.enqueue_id, blob_key=f"bare/{key.enqueue_id}")
        self._keys[key.enqueue_id.bytes] = key
        await self._store.put(turn.blob_key, CONTENT)
        values = (str(self._name), *rows.turn_values(turn))
        await self._view.execute(statements.INSERT_ROW, values)
        await self._broker.publish(self._name.exchange, "work", key.enqueue_id.bytes + b" " * 400)

    async def _leave(self, tag: int, body: bytes) -> None:
        key = self._keys.pop(body[:16])
        place_of = rows.key_values(str(self._name), key)
        await self._view.execute(statements.SELECT_MARK, place_of)
        assert await self._store.get(f"bare/{key.enqueue_id}") == CONTENT
        marked = (*place_of, *rows.trait_values(Traits(("example.net",))), datetime.now(UTC))
        await self._view.execute(statements.MARK_DELIVERED, marked)
        await self._store.delete(f"bare/{key.enqueue_id}")
        self._broker.channel.basic_ack(tag)


@asynccontextmanager
async def _bare(settings: Settings) -> AsyncIterator[Bare]:
    name = QueueName("bench", servers.fresh())
    made = connect(settings)
    await made.broker(name).declare()
    view = await BareCassandra.open(servers.cassandra(settings.cassandra.keyspace))
    await view.prepare(statements.INSERT_ROW, statements.SELECT_MARK, statements.MARK_DELIVERED)
    broker = BareRabbitMQ(parameters_of(servers.rabbitmq(), "bench"))
    await broker.ready()
    s3 = settings.s3
    access = S3Access(s3.endpoint, s3.region, _secret(s3.access_key), _secret(s3.secret_key))
    yield Bare(view, broker, BareStore(Objects(access, s3.bucket or "")), name)
    await broker.close()
    await view.close()
    await made.broker(name).delete()
    await made.close()


async def _requests(queue: MailQueue) -> Counter[str]:
    """Count what the adapters are asked for while so many mails enter and leave."""
    counts: Counter[str] = Counter()
    step = "enqueue"
    counted = [
        *((Session, each) for each in ("execute",)),
        *((Objects, each) for each in ("put", "get", "delete")),
        (Publisher, "publish"),
    ]

    def counting(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*values: Any, **named: Any) -> Any:
            counts[step] += 1
            return await method(*values, **named)

        return call

    originals = [(owner, name, getattr(owner, name)) for owner, name in counted]
    for owner, name, original in originals:
        setattr(owner, name, counting(original))
    try:
        await _enqueue(queue)
        step = "dequeue"
        await _dequeue(queue)
        counts[step] += MAILS  # the acks, which are no coroutines of an adapter's
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
    return counts


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _secret(value: Any) -> str | None:
    return None if value is None else str(value.get_secret_value())


TURN = Turn(
    key=TurnKey(datetime(2026, 1, 1, tzinfo=UTC), 0, UUID(int=0)),
    mail_id=UUID(int=0),
    envelope=Envelope("a@example.org", ("b@example.net",), "measured"),
    blob_key="",
    size_bytes=len(CONTENT),
    header_size=21,
    accepted_at=datetime(2026, 1, 1, tzinfo=UTC),
    enqueued_at=datetime(2026, 1, 1, tzinfo=UTC),
)
