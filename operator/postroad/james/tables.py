"""Cassandra tables of one mail queue of James, as he reads and writes them.

Source: Apache James, CassandraMailQueueViewModule and his DAOs, the same in 3.8.1 and 3.9.0."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from postroad.adapters.cassandra.session import Row, Session, Statement
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import Partition
from postroad.errors import ViewRefused, ViewUnavailable
from postroad.james.hiding import configurations_of
from postroad.james.properties import Configuration, as_in

ROWS, MARKS, BROWSE_START, EVENTS = "enqueuedmailsv4", "deletedmailsv2", "browsestart", "eventstore"
AGGREGATE = "CassandraMailQueueViewConfiguration"
"""The one aggregate of all his queues."""

_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'"
_PLACES = Statement(
    "SELECT DISTINCT queuename, timerangestart, bucketid FROM {keyspace}.enqueuedmailsv4"
)
_ROWS = Statement(
    "SELECT * FROM {keyspace}.enqueuedmailsv4"
    " WHERE queuename = ? AND timerangestart = ? AND bucketid = ?"
)
_IS_MARKED = Statement(
    "SELECT enqueueid FROM {keyspace}.deletedmailsv2 WHERE queuename = ? AND enqueueid = ?"
)
_MARK = Statement("INSERT INTO {keyspace}.deletedmailsv2 (queuename, enqueueid) VALUES (?, ?)")
_BROWSE_START = Statement("SELECT browsestart FROM {keyspace}.browsestart WHERE queuename = ?")
_EVENTS = Statement("SELECT event FROM {keyspace}.eventstore WHERE aggregateid = ?")


class JamesTables:
    """The tables of one queue. `queue` is empty where only the events are read."""

    def __init__(self, session: Session, queue: str = "") -> None:
        self.session = session
        self._queue = queue

    async def check(self, *tables: str) -> None:
        """Raises: ViewRefused, where the keyspace or one of the tables is not there; ViewError,
        CredentialsRefused."""
        with as_in("cassandra.properties"):
            found = {row["table_name"] for row in await self.session.run(_TABLES)}
        keyspace = self.session.keyspace
        if not found:
            raise ViewRefused(
                f"Cassandra has no keyspace {keyspace} with tables",
                hint="compare cassandra.keyspace and cassandra.nodes in cassandra.properties",
            )
        if missing := sorted(set(tables) - found):
            raise ViewRefused(
                f"the keyspace {keyspace} lacks {', '.join(missing)} of James",
                hint="it takes James 3.7 or later, with cassandra.view.enabled",
            )

    async def places(self) -> list[Partition]:
        """Return the partitions that the queue has rows in, oldest slice first, wherever his
        configurations put them. Reads the keys of all partitions of all queues."""
        found = [
            Partition(_utc(row["timerangestart"]), row["bucketid"])
            async for page in self.session.pages(_PLACES)
            for row in page
            if row["queuename"] == self._queue
        ]
        return sorted(found)

    async def rows(self, place: Partition) -> AsyncIterator[list[Row]]:
        """Yield the rows of a partition by pages, marked ones included."""
        values = (self._queue, place.slice_start, place.bucket_id)
        async for page in self.session.pages(_ROWS, values):
            yield page

    async def is_marked(self, enqueue_id: UUID) -> bool:
        """Return whether James has marked a mail as deleted: done, or removed."""
        return bool(await self.session.execute(_IS_MARKED, (self._queue, enqueue_id)))

    async def mark(self, enqueue_id: UUID) -> None:
        """Mark a mail as deleted, as his consumer does at its end. Idempotent."""
        await self.session.execute(_MARK, (self._queue, enqueue_id))

    async def browse_start(self) -> datetime | None:
        """Return from where he browses; None: he never opened the queue."""
        rows = await self.session.execute(_BROWSE_START, (self._queue,))
        return _utc(rows[0]["browsestart"]) if rows else None

    async def events(self) -> list[dict[str, Any]]:
        """Return the events of his view's configuration, oldest first. Raises: ViewUnavailable for
        one that is no JSON."""
        rows = await self.session.execute(_EVENTS, (AGGREGATE,))
        try:
            return [json.loads(row["event"]) for row in rows if row["event"] is not None]
        except ValueError as error:
            raise ViewUnavailable(f"an event of James' {EVENTS} is no JSON: {error}") from error


async def recorded_configurations(folder: Path) -> tuple[ViewConfiguration, ...]:
    """Return the configurations that a server has recorded of his view, oldest first, by his
    configuration directory. Raises: InvalidSettings, InvalidInput; ViewError, CredentialsRefused.
    """
    session = Session(Configuration(folder).cassandra())
    try:
        tables = JamesTables(session)
        await tables.check(EVENTS)
        return configurations_of(await tables.events())
    finally:
        await session.close()


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)
