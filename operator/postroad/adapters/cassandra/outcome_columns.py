"""The columns of a mark that keep an attempt: their values, and whether the keyspace has them.

A keyspace of an earlier release has them once the operator, or `--create`, has added them. Until
then marks are written without: no mail waits for a schema (ADR 0033).
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
"""How long a process writes marks without the columns before it looks for them again."""

_LOG = logger("cassandra")


class OutcomeColumns:
    """Knows whether marks have the columns. Asks once, and while they are missing now and then."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._are_there = False
        self._look_at = float("-inf")

    async def are_there(self) -> bool:
        """Return whether marks have the columns. Raises: ViewError."""
        now = asyncio.get_running_loop().time()
        if not self._are_there and now >= self._look_at:
            found = await schema.columns(self._session)
            wanted = {("deleted_mails", column) for column in OUTCOME_COLUMNS}
            self._are_there = wanted <= found
            self._look_at = now + LOOK_AGAIN.total_seconds()
            if not self._are_there:
                _LOG.warning(
                    "the outcomes of attempts are not kept: the table of marks has no columns for"
                    " them, which the operator or --create adds",
                    keyspace=self._session.keyspace,
                )
        return self._are_there


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
