"""`History` over Cassandra: one partition per queue, written by lightweight transactions only.

A transaction whose answer was lost may have been carried out. The caller repeats it without harm,
because the same event may be appended again, and a serial read completes a transaction under way.
Source: 000 Decision (eventSourcing); ADR 0005.

The home of a keyspace: the one data center in which all processes that use it work.

Marks, claims and replacements are decided by lightweight transactions of one data center
(LOCAL_SERIAL). Processes in two data centers could end a mail twice: removed in one and replaced in
the other, or claimed by two workers. So the first process records its data center, and a process
that is set to another is refused. Other data centers may have copies of the keyspace.

The record is an event in `configuration_events`, under a name that no queue can have, appended by a
transaction of all data centers. It changes only when the recorded data center has no copies left:
so an administrator gives a data center up (ADR 0004)."""

import asyncio
import json
from datetime import UTC, datetime

from postroad.adapters.cassandra import schema, statements
from postroad.adapters.cassandra.session import Row, Session, Statement
from postroad.domain.configuration.documents import from_document, to_document
from postroad.domain.configuration.history import READ_LEASE, ConfigurationEvent, Rollout
from postroad.errors import ConfigurationConflict, HistoryTooNew, InvalidInput, ViewRefused
from postroad.ports.view import Recorded

KEY = "@home"
"""In place of a queue's name, which has no @."""

CHECKED = READ_LEASE / 6
"""Time that a check stands for all queues of a session: less than the time between two readings of
a configuration (a quarter of the lease), so that each has one of its own."""


class Home:
    """The home of one session's keyspace."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._checked_at = float("-inf")

    async def check(self) -> None:
        """Compare the session's data center with the keyspace's, or record it as the first, unless
        they were found equal within `CHECKED`. One read within the data center; only a record needs
        the others. Raises: ViewRefused (the home is another), ViewUnavailable,
        CredentialsRefused."""
        now = asyncio.get_running_loop().time()
        if now - self._checked_at >= CHECKED.total_seconds():
            await self._compare()
            self._checked_at = now

    async def _compare(self) -> None:
        mine = self._session.local_datacenter
        rows = await self._session.execute(statements.SELECT_KEYSPACE_EVENTS, (KEY,))
        home = _data_center(rows[-1]) if rows else None
        if home == mine:
            return
        if home is None:
            home = await self._record(1, mine)
        elif await self._has_no_copies(home):
            home = await self._record(rows[-1]["sequence"] + 1, mine)
        if home != mine:
            keyspace = self._session.keyspace
            raise ViewRefused(
                f"the keyspace {keyspace} is used in the data center {home!r}, and this process is"
                f" set to work in {mine!r}",
                hint=f"set the local data center to {home}; to move to {mine}, end all processes,"
                f" take {home} out of the keyspace's replication (ALTER KEYSPACE) and start them",
            )

    async def _record(self, sequence: int, mine: str) -> str:
        """Append an event; return the home afterwards."""
        document = json.dumps({"data_center": mine})
        values = (KEY, sequence, "HomeChosen", datetime.now(UTC), document)
        [answer] = await self._session.execute(statements.APPEND_KEYSPACE_EVENT, values)
        return mine if answer["[applied]"] else _data_center(answer)

    async def _has_no_copies(self, home: str) -> bool:
        return not await schema.replication_factor(self._session, home)


def _data_center(row: Row) -> str:
    try:
        return str(json.loads(row["document"])["data_center"])
    except (ValueError, KeyError, TypeError) as error:
        raise ViewRefused(
            "the home of the keyspace cannot be read",
            hint="a newer release of postroad wrote it, or an administrator",
        ) from error


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
    """The configuration history of one queue. `home`: of the session, which its queues share."""

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
            raise HistoryTooNew(
                f"event {row['sequence']} of the configuration history of {self._queue} cannot be "
                f"read by this release: {error}"
            ) from error


def _values(rollout: Rollout | None) -> tuple[int | None, int | None]:
    return (rollout.writing, rollout.oldest) if rollout else (None, None)


def _rollout(rows: list[Row]) -> Rollout | None:
    if not rows or rows[0]["writing"] is None:
        return None
    return Rollout(rows[0]["writing"], rows[0]["oldest"])
