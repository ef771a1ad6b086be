"""Marks in Cassandra keep the outcomes of an attempt, where there are any."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from cassandra.cqltypes import lookup_casstype
from hypothesis import given
from hypothesis import strategies as st

from postroad.adapters.cassandra import mark_statements
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.cassandra.view import marks as mark_rows
from postroad.adapters.cassandra.view.marks import CassandraMarks
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.domain.queues.entries import Ending, EndingKind, EntryKey, Traits
from support.outcomes import kept_in

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEARD = AttemptOutcomes.of({"b@example.net": Outcome.failed("550 5.1.1 no such user")}, 1.5)


class RecordingSession:
    """Takes every statement. `sent` are statements with their values."""

    def __init__(self) -> None:
        self.sent: list[tuple[Statement, Sequence[Any]]] = []

    async def execute(self, statement: Statement, values: Sequence[Any]) -> list[dict[str, Any]]:
        assert statement.cql.count("?") == len(values)
        self.sent.append((statement, values))
        return [{"[applied]": True}]


def key(number: int) -> EntryKey:
    return EntryKey(NOW, 0, UUID(int=number))


def stored(statement: Statement, values: Sequence[Any]) -> AttemptOutcomes | None:
    """Return what a statement stores of an attempt: the values of its columns by their names."""
    inserted = re.search(r"\(([^)]*)\) VALUES", statement.cql)
    if inserted is not None:
        names = inserted[1].split(", ")
    else:
        names = re.findall(r"(\w+) = \?", statement.cql)
    return kept_in(dict(zip(names, values, strict=False)))


async def test_marks_with_outcomes_keep_them_and_others_leave_the_columns_unset() -> None:
    session, removed = RecordingSession(), Ending(EndingKind.REMOVED, NOW)
    marks = CassandraMarks(cast("Session", session), "mail.out")

    await marks.mark_delivered(key(1), NOW, Traits(()), HEARD)
    await marks.mark_delivered(key(2), NOW, Traits(()))
    await marks.end(key(3), removed, Traits(()), HEARD)
    await marks.end(key(4), removed, Traits(()))

    with_them, without = mark_statements.MARK_DELIVERED_KEEPING, mark_statements.MARK_DELIVERED
    ending, plain = mark_statements.END_KEEPING, mark_statements.END
    assert [statement for statement, _ in session.sent] == [with_them, without, ending, plain]
    assert stored(*session.sent[0]) == HEARD
    assert stored(*session.sent[2]) == HEARD


COLUMN_TYPES = {
    name: lookup_casstype(kind)
    for name, kind in zip(
        mark_statements.OUTCOME_COLUMNS,
        (
            "ListType(TupleType(UTF8Type,UTF8Type,UTF8Type,Int32Type,UTF8Type,UTF8Type,Int32Type))",
            "FloatType",
        ),
        strict=True,
    )
}
"""As the schema declares them."""

outcomes = st.lists(
    st.builds(
        Outcome,
        st.sampled_from(OutcomeKind),
        st.sampled_from(("550 5.1.1 no", "451 \ud800 \x00", "250 ok", "")) | st.text(max_size=20),
        st.sampled_from(("", "mx")),
    ),
    min_size=1,
    max_size=30,
)


@given(outcomes, st.floats(0, 1500, width=32))
def test_what_is_kept_survives_the_drivers_codec(heard: list[Outcome], seconds: float) -> None:
    domains = ("x.example", "y.example", "z.example")
    recipients = [f"{number}@{domains[number % 3]}" for number in range(len(heard))]
    wanted = AttemptOutcomes.of(dict(zip(recipients, heard, strict=True)), seconds)

    values = mark_rows.outcome_values(wanted)

    row = {
        name: kind.from_binary(kind.to_binary(value, 5), 5)
        for (name, kind), value in zip(COLUMN_TYPES.items(), values, strict=True)
    }
    assert kept_in(row) == wanted
