"""The home of a keyspace: the one data center in which all processes that use it work.

Marks, claims and replacements are decided by lightweight transactions of one data center
(LOCAL_SERIAL). Processes in two data centers could end a mail twice: removed in one and replaced in
the other, or claimed by two workers. So the first process records its data center, and a process
that is set to another is refused. Other data centers may have copies of the keyspace.

The record is an event in `configuration_events`, under a name that no queue can have, appended by a
transaction of all data centers. It changes only when the recorded data center has no copies left:
so an administrator gives a data center up (ADR 0004).
"""

import asyncio
import json
from datetime import UTC, datetime

from postroad.adapters.cassandra import schema, statements
from postroad.adapters.cassandra.connection.session import Row, Session
from postroad.domain.configuration.rollout import READ_LEASE
from postroad.errors import ViewRefused

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
        the others.

        Raises: ViewRefused (the home is another), ViewUnavailable, CredentialsRefused.
        """
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
