"""`ViewStore` over Cassandra: one keyspace, one session, and the claim on the keyspace: which
QueueCluster creates and alters its tables.

Claims are events in `configuration_events`, under a name that no queue can have, as the home of the
keyspace is: each is appended under the next number, by a transaction of all data centers, and the
last one holds. So the table lists who had the keyspace before, and one number has one winner.
Source: ADR 0040."""

import json
from datetime import UTC, datetime, timedelta

from postroad.adapters.cassandra import schema, statements
from postroad.adapters.cassandra.history import Home
from postroad.adapters.cassandra.session import Row, Session, Statement
from postroad.adapters.cassandra.view.view import CassandraView
from postroad.domain.queues.ownership import Claim, Claimant
from postroad.errors import ViewRefused
from postroad.ports.view import SchemaChanges, TableOptions

READ_AT_QUORUM = Statement("SELECT queue FROM {keyspace}.limits WHERE queue = 'check'")
"""No queue has this name: a queue's name has a dot."""


class CassandraViewStore:
    """The keyspace that the views of many queues share. `close` closes the session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.home = Home(session)
        """Shared with the histories of the queues."""

    def view(self, queue: str) -> CassandraView:
        return CassandraView(self._session, queue)

    async def create(self, options: TableOptions) -> SchemaChanges:
        return await schema.create(self._session, options, self.home.check)

    async def exists(self) -> bool:
        """Return whether the tables exist. Raises: ViewError."""
        return await schema.exists(self._session)

    async def local_nodes(self) -> int:
        """Return how many nodes the local data center has. Raises: ViewError."""
        return await self._session.local_nodes()

    async def running_nodes(self) -> int:
        """Return how many of the local nodes run. Raises: ViewError."""
        return await self._session.running_nodes()

    async def replication_factor(self, datacenter: str) -> int | None:
        """Return how many copies of a row a data center has; None when there is no keyspace.
        Raises: ViewError."""
        return await schema.replication_factor(self._session, datacenter)

    async def row_lifetime(self) -> timedelta | None:
        return await schema.row_lifetime(self._session)

    async def check(self) -> str:
        found = await self._session.run("SELECT release_version FROM system.local")
        if await schema.has_table(self._session, "limits"):
            # The requests so far need one host; this one needs a quorum.
            await self._session.execute(READ_AT_QUORUM)
        return str(found[0]["release_version"])

    async def close(self) -> None:
        await self._session.close()


KEY = "@claims"
"""In place of a queue's name, which has no @."""

CLAIMED, RELEASED = "Claimed", "Released"


class KeyspaceClaim:
    """`ClaimRecord` of one session's keyspace."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def claim(self, claimant: Claimant) -> Claim | None:
        """See the port. One read within the data center; only a record needs the others."""
        if not await schema.has_table(self._session, "configuration_events"):
            return None
        claims = await self._claims()
        while (holding := _last(claims)) is None:
            claims.append(await self._append(len(claims) + 1, claimant))
        return holding

    async def transfer(self, found: Claim, claimant: Claimant) -> Claim:
        claims = await self._claims()
        if _last(claims) == found:
            claims.append(await self._append(len(claims) + 1, claimant))
        while (holding := _last(claims)) is None:
            claims.append(await self._append(len(claims) + 1, claimant))
        return holding

    async def release(self, claimant: Claimant) -> None:
        claims = await self._claims()
        holding = _last(claims)
        if holding is not None and holding.is_of(claimant):
            await self._append(len(claims) + 1, None)

    async def _append(self, number: int, claimant: Claimant | None) -> Claimant | None:
        """Append a claim, or a release; return what has the number then. The answer of a
        transaction that was refused shows it, where a read of this data center alone may not."""
        document = json.dumps(claimant.encode() if claimant else None)
        kind = CLAIMED if claimant else RELEASED
        values = (KEY, number, kind, datetime.now(UTC), document)
        [answer] = await self._session.execute(statements.APPEND_KEYSPACE_EVENT, values)
        return claimant if answer["[applied]"] else _decoded(answer)

    async def _claims(self) -> list[Claimant | None]:
        rows = await self._session.execute(statements.SELECT_KEYSPACE_EVENTS, (KEY,))
        return [_decoded(row) for row in rows]


def _last(claims: list[Claimant | None]) -> Claim | None:
    if not claims or claims[-1] is None:
        return None
    former = frozenset(each.token for each in claims[:-1] if each is not None)
    return Claim.of(claims[-1], len(claims), former)


def _decoded(row: Row) -> Claimant | None:
    try:
        document = json.loads(row["document"])
        return None if document is None else Claimant.decode(document)
    except (ValueError, TypeError) as error:
        raise ViewRefused(
            f"claim {row['sequence']} on the keyspace cannot be read",
            hint="a newer release of postroad wrote it, or an administrator",
        ) from error
