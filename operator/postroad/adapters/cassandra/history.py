"""`History` over Cassandra: one partition per queue, written by lightweight transactions only.

A transaction whose answer was lost may have been carried out. The caller repeats it without harm,
because the same event may be appended again, and a serial read completes a transaction under way.
Source: 000 Decision (eventSourcing); ADR 0005.
"""

import json

from postroad.adapters.cassandra.connection.session import Row, Session, Statement
from postroad.adapters.cassandra.home import Home
from postroad.domain.configuration.documents import from_document, to_document
from postroad.domain.configuration.history import ConfigurationEvent
from postroad.domain.configuration.rollout import Rollout
from postroad.errors import ConfigurationConflict, InvalidInput, ViewRefused
from postroad.ports.history import Recorded

SELECT = Statement(
    "SELECT sequence, writing, oldest, document FROM {keyspace}.configuration_events"
    " WHERE queue = ?",
    serial=True,
)
"""Serial, so that a read shows every event whose append was answered: rollouts depend on it."""

APPEND = Statement(
    "INSERT INTO {keyspace}.configuration_events"
    " (queue, sequence, version, type, at, document) VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS"
)

ADVANCE = Statement(
    "UPDATE {keyspace}.configuration_events SET writing = ?, oldest = ?"
    " WHERE queue = ? IF writing = ? AND oldest = ?"
)
"""Null compares equal to null, and unlike UNSET it may stand in a condition."""

DELETE = Statement(
    "DELETE FROM {keyspace}.configuration_events WHERE queue = ? AND sequence = ? IF EXISTS"
)
"""Row by row: a plain deletion of the partition, with a client's clock for its timestamp, could
hide what the next owner of the name appends a moment later."""


class CassandraHistory:
    """The configuration history of one queue. `home`: that of the session, which its queues
    share."""

    def __init__(self, session: Session, queue: str, home: Home | None = None) -> None:
        self._session = session
        self._queue = queue
        self._home = home or Home(session)

    async def load(self) -> Recorded:
        """See the port. Refuses a process that works in another data center (ADR 0004), because
        every process reads the history before it uses a queue, and again within each lease."""
        await self._home.check()
        rows = await self._rows()
        events = tuple(self._event(row) for row in rows if row["sequence"] is not None)
        return Recorded(events, _rollout(rows))

    async def append(self, event: ConfigurationEvent) -> None:
        document = to_document(event)
        values = (
            *(self._queue, event.sequence, document.get("version")),
            *(document["type"], event.at, json.dumps(document)),
        )
        [answer] = await self._session.execute(APPEND, values)
        if not answer["[applied]"] and self._event(answer) != event:
            raise ConfigurationConflict(
                f"the configuration history of {self._queue} has another event "
                f"{event.sequence} already"
            )

    async def advance(self, before: Rollout | None, after: Rollout) -> bool:
        return await self._move(before, after)

    async def erase(self) -> None:
        rows = await self._rows()
        rollout = _rollout(rows)
        if rollout is not None:
            await self._move(rollout, None)
        for row in reversed(rows):
            if row["sequence"] is not None:
                await self._session.execute(DELETE, (self._queue, row["sequence"]))

    async def _move(self, before: Rollout | None, after: Rollout | None) -> bool:
        values = (*_values(after), self._queue, *_values(before))
        [answer] = await self._session.execute(ADVANCE, values)
        return bool(answer["[applied]"])

    async def _rows(self) -> list[Row]:
        pages = self._session.pages(SELECT, (self._queue,))
        return [row async for page in pages for row in page]

    def _event(self, row: Row) -> ConfigurationEvent:
        try:
            return from_document(json.loads(row["document"]))
        except (ValueError, TypeError, InvalidInput) as error:
            raise ViewRefused(
                f"event {row['sequence']} of the configuration history of {self._queue} cannot be "
                "read",
                hint="a newer release of postroad wrote it, or an administrator",
            ) from error


def _values(rollout: Rollout | None) -> tuple[int | None, int | None]:
    return (rollout.writing, rollout.oldest) if rollout else (None, None)


def _rollout(rows: list[Row]) -> Rollout | None:
    if not rows or rows[0]["writing"] is None:
        return None
    return Rollout(rows[0]["writing"], rows[0]["oldest"])
