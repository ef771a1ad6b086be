"""`ViewStore` over Cassandra: one keyspace, one session."""

from datetime import timedelta

from postroad.adapters.cassandra import schema
from postroad.adapters.cassandra.connection.session import Session, Statement
from postroad.adapters.cassandra.home import Home
from postroad.adapters.cassandra.view.view import CassandraView
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
