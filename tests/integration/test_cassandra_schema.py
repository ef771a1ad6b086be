"""Creating the keyspace and its tables in a real Cassandra."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import uuid4

import pytest

import servers
from postroad.adapters.cassandra import schema
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.entries import Entry, Traits, place
from postroad.domain.values.identifiers import id_at
from postroad.errors import ViewRefused, ViewUnavailable
from postroad.ports.view import FOREVER, SchemaChanges, TableOptions

pytestmark = pytest.mark.needs("cassandra")

HOUR = timedelta(hours=1)
NOW = datetime(2026, 1, 1, 10, 20, tzinfo=UTC)
OPTIONS = TableOptions(
    replication={"class": "SimpleStrategy", "replication_factor": "1"},
    row_lifetime=timedelta(days=14),
    compaction_window=12 * HOUR,
    gc_grace=3 * HOUR,
)
ENVELOPE = Envelope(None, ("b@example.net",))


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    session = Session(servers.cassandra(servers.fresh()))
    yield session
    await session.run("DROP KEYSPACE IF EXISTS {keyspace}")
    await session.close()


async def options_of(session: Session, table: str) -> dict[str, object]:
    rows = await session.run(
        "SELECT default_time_to_live, gc_grace_seconds, compaction FROM system_schema.tables"
        f" WHERE keyspace_name = '{{keyspace}}' AND table_name = '{table}'"
    )
    return dict(rows[0])


async def test_several_may_create_and_again_when_all_is_there(session: Session) -> None:
    store = CassandraViewStore(session)

    await asyncio.gather(*(store.create(OPTIONS) for _ in range(3)))
    await store.create(OPTIONS)

    tables = await session.run(
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'"
    )
    wanted = set(filter(None, map(schema.table_of, schema.statements())))
    assert {row["table_name"] for row in tables} == wanted


async def test_what_was_changed_by_hand_is_put_back_and_named(session: Session) -> None:
    store = CassandraViewStore(session)
    first = await store.create(OPTIONS)
    assert first.created == tuple(sorted(filter(None, map(schema.table_of, schema.statements()))))
    assert first.altered == ()
    assert await store.create(OPTIONS) == SchemaChanges()
    await session.run("ALTER TABLE {keyspace}.enqueued_mails WITH default_time_to_live = 60")
    await session.run("DROP TABLE {keyspace}.limits")

    changes = await store.create(OPTIONS)

    assert changes == SchemaChanges(("limits",), ("enqueued_mails",))
    assert (await options_of(session, "enqueued_mails"))["default_time_to_live"] == 14 * 86400
    assert (await store.view("test.queue").limits()).browse_start is None


async def test_options_that_differ_are_altered(session: Session) -> None:
    store = CassandraViewStore(session)
    await store.create(OPTIONS)

    await store.create(
        replace(OPTIONS, row_lifetime=timedelta(days=30), compaction_window=24 * HOUR)
    )

    for table in schema.AGING_TABLES:
        found = await options_of(session, table)
        assert found["default_time_to_live"] == 30 * 86400
        assert found["gc_grace_seconds"] == 3 * 3600
        compaction = dict(cast("Mapping[str, str]", found["compaction"]))
        assert compaction["class"].endswith("TimeWindowCompactionStrategy")
        assert compaction["compaction_window_unit"] == "DAYS"
        assert compaction["compaction_window_size"] == "1"
    assert (await options_of(session, "dead_letters"))["default_time_to_live"] == 0


async def test_a_shorter_lifetime_is_that_of_new_rows_and_never_of_marks(session: Session) -> None:
    """A mark that expired before its row would bring the mail back."""
    store = CassandraViewStore(session)
    view = store.view("test.out")
    keys = [place(id_at(NOW, 0, number), HOUR, 1) for number in (1, 2)]
    await store.create(OPTIONS)
    await view.insert(Entry(keys[0], uuid4(), ENVELOPE, "k", 1, NOW, NOW))

    shorter = replace(OPTIONS, row_lifetime=timedelta(days=1))
    await store.create(shorter)
    await store.create(shorter)
    await view.insert(Entry(keys[1], uuid4(), ENVELOPE, "k", 1, NOW, NOW))
    for key in keys:
        await view.mark_delivered(key, NOW, Traits(("example.net",)))

    rows = [row.remaining async for row in view.rows(keys[0].partition)]
    marks = await session.run("SELECT TTL(delivered_at) AS left FROM {keyspace}.deleted_mails")
    assert [round(each / timedelta(days=1), 2) for each in rows if each] == [14, 1]
    assert [round(row["left"] / 86400, 2) for row in marks] == [14, 14]
    assert await store.row_lifetime() == timedelta(days=1)


async def test_a_lifetime_of_zero_is_for_ever(session: Session) -> None:
    store = CassandraViewStore(session)
    await store.create(OPTIONS)
    await session.run("ALTER TABLE {keyspace}.enqueued_mails WITH default_time_to_live = 0")

    assert await store.row_lifetime() == FOREVER


async def test_rows_expire_with_the_tables_lifetime(session: Session) -> None:
    store = CassandraViewStore(session)
    await store.create(OPTIONS)
    key = place(id_at(NOW, 0, 1), HOUR, 1)
    entry = Entry(key, uuid4(), Envelope(None, ("b@example.net",)), "k", 1, NOW, NOW)

    await store.view("test.out").insert(entry)

    rows = await session.run("SELECT TTL(blob_key) AS left FROM {keyspace}.enqueued_mails")
    assert 14 * 86400 - 60 < rows[0]["left"] <= 14 * 86400


async def test_what_an_entry_lacks_is_left_unset_and_makes_no_tombstone(session: Session) -> None:
    """A null would overwrite; an unset value leaves what stands there."""
    store = CassandraViewStore(session)
    await store.create(OPTIONS)
    view = store.view("test.out")
    key = place(id_at(NOW, 0, 1), HOUR, 1)
    envelope = Envelope("a@example.org", ("b@example.net",), name="n", attributes={"a": "b"})
    full = Entry(key, uuid4(), envelope, "k", 1, NOW, NOW, NOW, True, 1, "error", (key,))
    bare = Entry(key, full.mail_id, Envelope(None, ("b@example.net",)), "k", 1, NOW, NOW, None)
    await view.insert(full)

    await view.insert(bare)

    assert await view.row(key) == replace(full, attempt=0)


async def test_missing_tables_are_refused_with_what_to_do(session: Session) -> None:
    view = CassandraViewStore(session).view("test.out")

    with pytest.raises(ViewRefused) as refused:
        await view.limits()

    assert "--create" in refused.value.hint


async def test_a_check_needs_a_quorum_once_there_are_tables(session: Session) -> None:
    """One replica of three runs, and returns its version all the same."""
    store = CassandraViewStore(session)
    assert await store.check()

    await store.create(
        replace(OPTIONS, replication={"class": "SimpleStrategy", "replication_factor": "3"})
    )

    with pytest.raises(ViewUnavailable):
        await store.check()
    await session.run(
        "ALTER KEYSPACE {keyspace} WITH replication ="
        " {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    assert await store.check()
    assert await store.running_nodes() == await store.local_nodes() == 1


async def test_tables_of_other_columns_are_refused_and_left_as_they_are(session: Session) -> None:
    store = CassandraViewStore(session)
    await store.create(OPTIONS)
    await session.run("DROP TABLE {keyspace}.limits")
    await session.run("DROP TABLE {keyspace}.slices")
    await session.run("CREATE TABLE {keyspace}.limits (queue text PRIMARY KEY, browse_start text)")

    with pytest.raises(ViewRefused, match=r"limits\.browse_start is text, wanted is timestamp"):
        await store.create(replace(OPTIONS, row_lifetime=timedelta(days=30)))

    found = await options_of(session, "enqueued_mails")
    assert found["default_time_to_live"] == OPTIONS.row_lifetime.total_seconds()
    assert not await schema.has_table(session, "slices")
