"""A keyspace of an earlier release serves: new columns are neither written nor read there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from cassandra.cqltypes import lookup_casstype
from hypothesis import given
from hypothesis import strategies as st

from postroad.adapters.cassandra import added_columns, mark_statements, schema
from postroad.adapters.cassandra.marks import CassandraMarks
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.adapters.cassandra.table_columns import declared_by
from postroad.adapters.cassandra.view import CassandraView
from postroad.domain.attempts import AttemptOutcomes
from postroad.domain.entries import Ending, EndingKind, Traits
from postroad.domain.mail import Outcome, OutcomeKind
from postroad.domain.slices import EntryKey
from postroad.errors import ViewRefused
from postroad.ports.view import Limits, SchemaChanges, TableOptions
from support.outcomes import kept_in

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEARD = AttemptOutcomes.of({"b@example.net": Outcome.failed("550 5.1.1 no such user")}, 1.5)
OPTIONS = TableOptions({}, timedelta(days=14), timedelta(hours=12), timedelta(hours=3))
NEW = {("deleted_mails", "outcomes"), ("deleted_mails", "seconds")}
ADDED = NEW | {("limits", "archived_through")}


@dataclass
class Server:
    """Cassandra as far as tables and columns go. `sent` are statements on marks with their values,
    `racing` columns that another process adds just before this one."""

    keyspace: str = "mail"
    local_datacenter: str = "datacenter1"
    columns: set[tuple[str, str]] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    racing: set[tuple[str, str]] = field(default_factory=set)
    looked: int = 0
    sent: list[tuple[Statement, Sequence[Any]]] = field(default_factory=list)

    async def run(self, cql: str) -> list[dict[str, Any]]:
        if "system_schema.columns" in cql:
            self.looked += 1
            return self._rows()
        if "system_schema.tables" in cql:
            aging = {"class": "x.None"}
            zero = {"default_time_to_live": 0, "compaction": aging, "gc_grace_seconds": 0}
            return [{"table_name": each} | zero for each in self.tables]
        if "system_schema.keyspaces" in cql:
            return [{"keyspace_name": self.keyspace, "replication": {"dc2": "3"}}]
        if (column := schema.column_of(cql)) is not None:
            if column in self.racing | self.columns:
                self.columns.add(column)
                raise ViewRefused("a column of this name exists")
            assert column[0] in self.tables
            self.columns.add(column)
        elif (table := schema.table_of(cql)) is not None:
            self.tables.add(table)
        return []

    def _rows(self) -> list[dict[str, Any]]:
        """Return what `system_schema.columns` has of the schema's tables and the added columns."""
        tables = self.tables | {table for table, _ in self.columns}
        return [
            {"table_name": name[0], "column_name": name[1], **column._asdict()}
            for statement in schema.statements()
            for name, column in declared_by(statement).items()
            if (name in self.columns if schema.column_of(statement) else name[0] in tables)
        ]

    async def execute(self, statement: Statement, values: Sequence[Any]) -> list[dict[str, Any]]:
        if "configuration_events" in statement.cql:  # of the home: there is none, and it is set
            return [] if statement.cql.startswith("SELECT") else [{"[applied]": True}]
        return await self.execute_batch([(statement, values)])

    async def execute_batch(
        self, together: Sequence[tuple[Statement, Sequence[Any]]]
    ) -> list[dict[str, Any]]:
        for statement, values in together:
            assert statement.cql.count("?") == len(values)
            self.sent.append((statement, values))
        return [{"[applied]": True}]


async def create(server: Server) -> SchemaChanges:
    return await CassandraViewStore(cast("Session", server)).create(OPTIONS)


def marks_of(server: Server) -> CassandraMarks:
    return CassandraMarks(cast("Session", server), "mail.out")


def key(number: int) -> EntryKey:
    return EntryKey(NOW, 0, UUID(int=number))


async def end_some(marks: CassandraMarks) -> None:
    """One delivery and one ending with outcomes, and one of each without."""
    removed = Ending(EndingKind.REMOVED, NOW)
    await marks.mark_delivered(key(1), NOW, Traits(()), HEARD)
    await marks.mark_delivered(key(2), NOW, Traits(()))
    await marks.end(key(3), removed, Traits(()), HEARD)
    await marks.end(key(4), removed, Traits(()))


async def test_marks_of_a_keyspace_with_the_columns_keep_outcomes() -> None:
    server = Server(columns=set(NEW))

    await end_some(marks_of(server))

    with_them, without = mark_statements.MARK_DELIVERED_KEEPING, mark_statements.MARK_DELIVERED
    ending, plain = mark_statements.END_KEEPING, mark_statements.END
    assert [statement for statement, _ in server.sent] == [with_them, without, ending, plain]
    assert stored(*server.sent[0]) == HEARD
    assert stored(*server.sent[2]) == HEARD
    assert server.looked == 1, "it asks once"


def stored(statement: Statement, values: Sequence[Any]) -> AttemptOutcomes | None:
    """Return what a statement stores of an attempt: the values of its columns by their names."""
    inserted = re.search(r"\(([^)]*)\) VALUES", statement.cql)
    if inserted is not None:
        names = inserted[1].split(", ")
    else:
        names = re.findall(r"(\w+) = \?", statement.cql)
    return kept_in(dict(zip(names, values, strict=False)))


@pytest.mark.parametrize("columns", [set(), {("deleted_mails", "outcomes")}])
async def test_marks_of_a_keyspace_without_them_are_as_before(
    columns: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(columns=columns)
    marks = marks_of(server)

    await end_some(marks)
    await end_some(marks)

    before = {mark_statements.MARK_DELIVERED, mark_statements.END}
    assert {statement for statement, _ in server.sent} == before
    assert server.looked == 1, "it looks again after a while only"
    server.columns |= NEW
    monkeypatch.setattr(added_columns, "LOOK_AGAIN", timedelta(0))
    later = marks_of(server)
    await later.mark_delivered(key(1), NOW, Traits(()), HEARD)
    assert server.sent[-1][0] is mark_statements.MARK_DELIVERED_KEEPING


async def test_columns_that_come_later_are_found_by_a_running_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(added_columns, "LOOK_AGAIN", timedelta(0))
    server = Server()
    marks = marks_of(server)
    await marks.mark_delivered(key(1), NOW, Traits(()), HEARD)

    server.columns |= NEW
    await marks.mark_delivered(key(1), NOW, Traits(()), HEARD)

    plain, keeping = mark_statements.MARK_DELIVERED, mark_statements.MARK_DELIVERED_KEEPING
    assert [statement for statement, _ in server.sent] == [plain, keeping]


async def test_a_schema_gets_the_columns_that_it_lacks_once() -> None:
    server = Server()
    first = await create(server)
    assert server.columns == ADDED
    assert first.added == (), "the tables are new"
    server.columns.discard(("deleted_mails", "seconds"))
    assert not await schema.exists(cast("Session", server))

    again = await create(server)

    assert again.added == ("deleted_mails.seconds",)
    assert await schema.exists(cast("Session", server))


async def test_a_column_that_another_process_adds_meanwhile_is_no_error() -> None:
    server = Server(racing=set(ADDED))

    await create(server)

    assert server.columns == ADDED


async def test_a_column_that_cannot_be_added_is_an_error() -> None:
    class Refusing(Server):
        async def run(self, cql: str) -> list[dict[str, Any]]:
            if schema.column_of(cql) is not None:
                raise ViewRefused("no right to alter")
            return await super().run(cql)

    with pytest.raises(ViewRefused):
        await create(Refusing())


async def test_tables_of_another_data_center_are_not_altered() -> None:
    class Elsewhere(Server):
        async def execute(self, *_: Any) -> list[dict[str, Any]]:
            return [{"sequence": 1, "document": '{"data_center": "dc2"}'}]

    server = Elsewhere()
    await create(server)
    server.columns.discard(("deleted_mails", "seconds"))

    with pytest.raises(ViewRefused, match="used in the data center 'dc2'"):
        await create(server)
    assert server.columns != ADDED

    server.local_datacenter = "dc2"
    assert (await create(server)).added == ("deleted_mails.seconds",)


async def test_a_table_of_others_is_refused_as_such_before_the_home_is_looked_for_in_it() -> None:
    class Foreign(Server):
        def _rows(self) -> list[dict[str, Any]]:
            one = {"table_name": "configuration_events", "column_name": "id", "type": "int"}
            return [one | {"kind": "partition_key", "position": 0}]

        async def execute(self, *_: Any) -> list[dict[str, Any]]:
            raise ViewRefused("Undefined column name sequence")

    server = Foreign(tables={"configuration_events"})
    with pytest.raises(ViewRefused, match="tables of other columns"):
        await create(server)
    assert server.tables == {"configuration_events"}


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

    values = added_columns.outcome_values(wanted)

    row = {
        name: kind.from_binary(kind.to_binary(value, 5), 5)
        for (name, kind), value in zip(COLUMN_TYPES.items(), values, strict=True)
    }
    assert kept_in(row) == wanted


@pytest.mark.parametrize("has_column", [False, True])
async def test_limits_are_read_with_and_without_the_column_of_the_archive(
    has_column: bool,
) -> None:
    class Limited(Server):
        async def execute(
            self, statement: Statement, values: Sequence[Any]
        ) -> list[dict[str, Any]]:
            names = re.findall(r"\w+", statement.cql.partition(" FROM ")[0])[1:]
            assert "archived_through" not in names or has_column, "Cassandra would refuse it"
            return [dict.fromkeys(names, NOW.replace(tzinfo=None)) | {"incarnation": UUID(int=1)}]

    server = Limited(columns={("limits", "archived_through")} if has_column else set())

    limits = await CassandraView(cast("Session", server), "mail.out").limits()

    assert limits == Limits(NOW, NOW, NOW if has_column else None)


async def test_queues_of_a_keyspace_ask_for_its_columns_once() -> None:
    class Empty(Server):
        async def execute(self, *_: Any) -> list[dict[str, Any]]:
            return []

    server = Empty(columns=set(ADDED))
    store = CassandraViewStore(cast("Session", server))

    for queue in ("mail.a", "mail.b"):
        await store.view(queue).limits()

    assert server.looked == 1


async def test_columns_that_a_process_adds_itself_are_there_at_once() -> None:
    server = Server()
    await create(server)
    server.columns -= ADDED  # as an earlier release left it
    store = CassandraViewStore(cast("Session", server))
    view = store.view("mail.out")
    await end_some(view)
    await store.create(OPTIONS)
    server.sent.clear()

    await end_some(view)

    assert server.sent[0][0] is mark_statements.MARK_DELIVERED_KEEPING
