"""Columns that tables of an earlier release lack until the operator, or `--create`, adds them.

Until then their values are neither written nor read: no mail waits for a schema (ADR 0033).
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from postroad.adapters.cassandra import schema
from postroad.adapters.cassandra.mark_statements import OUTCOME_COLUMNS
from postroad.adapters.cassandra.session import Session
from postroad.domain.attempts import AttemptOutcomes
from postroad.telemetry.logs import logger

LOOK_AGAIN = timedelta(minutes=10)
"""How long a process works without the columns before it looks for them again."""

_LOG = logger("cassandra")


class AddedColumns:
    """Knows whether a table has columns. Asks once, and while they are missing now and then."""

    def __init__(self, session: Session, table: str, *columns: str) -> None:
        self._session = session
        self._table = table
        self._wanted = {(table, column) for column in columns}
        self._are_there = False
        self._look_at = float("-inf")

    def look_again(self) -> None:
        """Ask the next time, because the tables were altered."""
        self._look_at = float("-inf")

    async def are_there(self) -> bool:
        """Return whether the table has the columns. Raises: ViewError."""
        now = asyncio.get_running_loop().time()
        if not self._are_there and now >= self._look_at:
            self._are_there = self._wanted <= await schema.columns(self._session)
            self._look_at = now + LOOK_AGAIN.total_seconds()
            if not self._are_there:
                _LOG.warning(
                    "the tables are of an earlier release: columns are missing, which the operator"
                    " or --create adds; mail goes on without them",
                    keyspace=self._session.keyspace,
                    table=self._table,
                )
        return self._are_there


class ViewColumns:
    """The added columns of a keyspace: asked for once, however many queues have it. The answer
    lists all columns of all tables."""

    def __init__(self, session: Session) -> None:
        self.outcomes = AddedColumns(session, "deleted_mails", *OUTCOME_COLUMNS)
        self.archived = AddedColumns(session, "limits", "archived_through")

    def look_again(self) -> None:
        """Ask the next time, because the tables were altered."""
        self.outcomes.look_again()
        self.archived.look_again()


def outcome_values(outcomes: AttemptOutcomes) -> tuple[object, ...]:
    """Return what is kept of an attempt, in the order of OUTCOME_COLUMNS."""
    counts = [
        (
            *(each.domain, each.site, each.kind.value, each.code),
            None if each.reason is None else each.reason.value,
            *(each.words, each.count),
        )
        for each in outcomes.counts
    ]
    return counts, outcomes.seconds
