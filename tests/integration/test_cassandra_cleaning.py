"""The cost of cleaning a drained slice: as many statements for many mails as for few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

import servers
from postroad.adapters.cassandra import mark_statements, statements
from postroad.adapters.cassandra.session import Row, Session, Statement
from postroad.adapters.cassandra.view.view import CassandraView
from postroad.adapters.memory.servers import FixedConfiguration, MemoryServers, MemoryWorld
from postroad.distributed.engine.engine import Engine, Parts
from postroad.distributed.maintenance.maintenance import Cleanup
from postroad.domain.configuration.history import MAX_READ_LEASE
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.entries import Entry, EntryKey
from postroad.domain.queues.names import QueueName
from postroad.domain.values.identifiers import id_at
from postroad.domain.values.instants import Readings
from postroad.ports.view import ClosedSlice
from support.keyspaces import keyspace
from support.memory.clock import START, ManualClock, SeededRandomness

__all__ = ["keyspace"]

pytestmark = pytest.mark.needs("cassandra")

WINDOW, BUCKETS = timedelta(minutes=5), 3


class CountingSession(Session):
    """Counts the statements that are sent, page by page."""

    def __init__(self, keyspace: str) -> None:
        super().__init__(servers.cassandra(keyspace))
        self.sent: Counter[Statement] = Counter()

    async def _page(
        self, statement: Statement, values: Sequence[object], state: bytes | None
    ) -> tuple[list[Row], bytes | None]:
        self.sent[statement] += 1
        return await super()._page(statement, values, state)


class LaterView(CassandraView):
    """A view whose hosts show the time of a lease later, so that the test need not wait that
    long."""

    async def server_times(self) -> Readings:
        return (await super().server_times()).later(MAX_READ_LEASE)


async def cost_of_cleaning(session: CountingSession, mails: int) -> Counter[Statement]:
    """Return the statements that clean one slice with so many delivered mails in each bucket."""
    name, clock = QueueName("test", servers.fresh()), ManualClock()
    view, others = LaterView(session, str(name)), MemoryServers(MemoryWorld(clock))
    parts = Parts(
        name=name,
        broker=others.broker(name),
        view=view,
        blobs=others.blobs("bucket"),
        configuration=FixedConfiguration(ViewConfiguration(WINDOW, BUCKETS, 1000)),
        clock=clock,
        randomness=SeededRandomness(),
    )
    for number in range(mails * BUCKETS):
        entry = _entry(number)
        await view.insert(entry)
        await view.mark_delivered(entry.key, START, entry.traits)
    rows = dict.fromkeys(range(BUCKETS), mails)
    await view.close_slice(ClosedSlice(START, WINDOW, rows, drained=True))
    await view.advance(content_start=START, browse_start=START + WINDOW)
    engine = Engine(parts)
    cleaning = Cleanup(engine)
    assert await cleaning.run() == 0
    clock.jump(engine.timing.longest_read_lease)
    session.sent.clear()

    assert await cleaning.run() == 1

    sent = session.sent.copy()
    assert await view.row(_entry(0).key) is None
    assert await view.mark(_entry(0).key) is None
    assert (await view.limits()).content_start == START + WINDOW
    return sent


def _entry(number: int) -> Entry:
    envelope = Envelope(None, ("b@example.net",))
    key = EntryKey(START, number % BUCKETS, id_at(START, number, number))
    return Entry(key, key.enqueue_id, envelope, "b", 1, START, START, None)


async def test_cleaning_a_slice_costs_the_same_for_many_mails_as_for_few(keyspace: str) -> None:
    session = CountingSession(keyspace)

    few = await cost_of_cleaning(session, 2)
    many = await cost_of_cleaning(session, 200)

    print({statement.cql: count for statement, count in many.items()})
    assert many == few
    assert many[statements.DELETE_ROWS] == many[mark_statements.DELETE_MARKS] == BUCKETS
    await session.close()
