"""A session with Cassandra whose answers a test gives, for statement by statement."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from postroad.adapters.cassandra.session import Session, Statement

Rows = list[dict[str, Any]]


class ScriptedSession(Session):
    """`answers` has the answers to a statement, one for each time it is sent; the last one stays.
    A statement without any is answered with no rows. `sent` are the statements with their values;
    `batches` has the sizes of those that were sent together."""

    def __init__(self) -> None:
        self.answers: dict[Statement, list[Rows | Exception]] = {}
        self.schema: dict[str, Rows] = {}
        self.sent: list[tuple[Statement, tuple[Any, ...]]] = []
        self.batches: list[int] = []
        self.nodes = 3

    def answer(self, statement: Statement, *answers: Rows | Exception) -> None:
        """Set the answers to a statement."""
        self.answers[statement] = list(answers)

    def values_of(self, statement: Statement) -> list[tuple[Any, ...]]:
        """Return the values with which a statement was sent, each time."""
        return [values for each, values in self.sent if each is statement]

    @property
    def keyspace(self) -> str:
        return "mail"

    @property
    def local_datacenter(self) -> str:
        return "dc1"

    def now_us(self) -> int:
        return 1_000_000_000

    async def execute(self, statement: Statement, values: Sequence[object] = ()) -> list[Any]:
        return self._answered(statement, values)

    async def execute_batch(
        self, together: Sequence[tuple[Statement, Sequence[object]]]
    ) -> list[Any]:
        self.batches.append(len(together))
        answers = [self._answered(statement, values) for statement, values in together]
        return answers[0]

    async def pages(  # type: ignore[override]
        self, statement: Statement, values: Sequence[object] = ()
    ) -> AsyncIterator[list[Any]]:
        rows = self._answered(statement, values)
        for start in range(0, max(len(rows), 1), 2):
            yield rows[start : start + 2]

    async def run(self, cql: str, timeout: object = None) -> list[Any]:
        return next((rows for part, rows in self.schema.items() if part in cql), [])

    def _answered(self, statement: Statement, values: Sequence[object]) -> Rows:
        assert statement.cql.count("?") == len(values), statement.cql
        self.sent.append((statement, tuple(values)))
        waiting = self.answers.get(statement, [[]])
        found = waiting[0] if len(waiting) == 1 else waiting.pop(0)
        if isinstance(found, Exception):
            raise found
        return found
