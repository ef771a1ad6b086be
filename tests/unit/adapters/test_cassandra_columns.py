"""Tables of other columns are distinguished from the schema's, by each difference."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from postroad.adapters.cassandra import schema
from postroad.adapters.cassandra.schema import (
    Column,
    ColumnName,
    differences,
    found_in,
    refuse_others,
)
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.errors import ViewRefused
from postroad.ports.view import SchemaChanges, TableOptions

OPTIONS = TableOptions({}, timedelta(days=14), timedelta(hours=12), timedelta(hours=3))


def test_every_column_of_the_schema_is_read() -> None:
    found = schema.declared()

    assert found["enqueued_mails", "queue"] == Column("text", "partition_key", 0)
    assert found["enqueued_mails", "bucket_id"] == Column("int", "partition_key", 2)
    assert found["enqueued_mails", "enqueue_id"] == Column("uuid", "clustering", 0)
    assert found["deleted_mails", "purged_through"] == Column("uuid", "static")
    assert found["claims", "enqueue_id"] == Column("uuid", "partition_key", 1)
    assert found["slices", "queue"] == Column("text", "partition_key", 0)
    assert found["slices", "slice_start"] == Column("timestamp", "clustering", 0)
    assert found["deleted_mails", "seconds"] == Column("float", "regular")
    assert found["dead_letters", "requeued_as"].type == "frozen<tuple<timestamp, int, uuid>>"
    assert {name for name in found if not found[name].type} == set()
    tables = {schema.table_of(text) for text in schema.statements()} - {None}
    for table in tables:
        kinds = {each.kind for (of, _), each in found.items() if of == table}
        assert "partition_key" in kinds, table
    assert len(found) > 100


def test_cassandras_own_description_of_the_schema_is_no_difference() -> None:
    """Types as `system_schema.columns` has them."""
    types = {"frozen<tuple<timestamp, int, uuid>>": "frozen<tuple<timestamp,int,uuid>>"}
    rows = [
        {
            "table_name": table,
            "column_name": name,
            "type": types.get(each.type, each.type),
            "kind": each.kind,
            "position": each.position,
        }
        for (table, name), each in schema.declared().items()
    ]

    assert differences(schema.declared(), found_in(rows)) == []


@pytest.mark.parametrize(
    ("name", "found", "difference"),
    [
        (
            ("limits", "browse_start"),
            Column("text", "regular"),
            "limits.browse_start is text, wanted is timestamp",
        ),
        (("limits", "browse_start"), None, "limits.browse_start is missing, wanted is timestamp"),
        (
            ("limits", "incarnation"),
            Column("uuid", "regular"),
            "limits.incarnation is uuid, wanted is uuid (clustering)",
        ),
        (
            ("deliveries", "mail_id"),
            Column("uuid", "partition_key", 0),
            "deliveries.mail_id is uuid (partition_key), wanted is uuid (partition_key)",
        ),
        (
            ("enqueued_mails", "recipients"),
            Column("frozen<set<text>>", "regular"),
            "enqueued_mails.recipients is frozen<set<text>>, wanted is frozen<list<text>>",
        ),
    ],
    ids=["type", "missing", "part of the key", "place in the key", "nested"],
)
def test_a_difference_has_what_is_found_and_what_is_wanted(
    name: ColumnName, found: Column | None, difference: str
) -> None:
    present = schema.declared()
    if found is None:
        del present[name]
    else:
        present[name] = found

    assert differences(schema.declared(), present) == [difference]
    with pytest.raises(ViewRefused, match="tables of other columns") as raised:
        refuse_others(schema.declared(), present)
    assert difference in str(raised.value)


def test_what_is_missing_or_added_as_a_whole_is_no_difference() -> None:
    """A table is created; a column that the schema lacks may be of a later release."""
    present = {name: each for name, each in schema.declared().items() if name[0] != "slices"}
    present["limits", "of_a_later_release"] = Column("int", "regular")

    assert differences(schema.declared(), present) == []


def test_many_differences_are_counted() -> None:
    present = {("limits", "queue"): Column("text", "partition_key", 0)}

    with pytest.raises(ViewRefused, match="and 1 more"):
        refuse_others(schema.declared(), present)


@dataclass
class Server:
    """Cassandra as far as tables and columns go, whose home is the data center dc2."""

    local_datacenter: str = "datacenter1"
    keyspace: str = "mail"
    tables: set[str] = field(default_factory=set)

    async def run(self, cql: str) -> list[dict[str, Any]]:
        if "system_schema.columns" in cql:
            return self.column_rows()
        if "system_schema.tables" in cql:
            aging = {"class": "x.None"}
            zero = {"default_time_to_live": 0, "compaction": aging, "gc_grace_seconds": 0}
            return [{"table_name": each} | zero for each in self.tables]
        if "system_schema.keyspaces" in cql:
            return [{"keyspace_name": self.keyspace, "replication": {"dc2": "3"}}]
        if (table := schema.table_of(cql)) is not None:
            self.tables.add(table)
        return []

    def column_rows(self) -> list[dict[str, Any]]:
        return [
            {"table_name": name[0], "column_name": name[1], **column._asdict()}
            for name, column in schema.declared().items()
            if name[0] in self.tables
        ]

    async def execute(self, *_: Any) -> list[dict[str, Any]]:
        return [{"sequence": 1, "document": '{"data_center": "dc2"}'}]


async def create(server: Server) -> SchemaChanges:
    return await CassandraViewStore(cast("Session", server)).create(OPTIONS)


async def test_tables_of_another_data_center_are_not_altered() -> None:
    server = Server()
    await create(server)
    server.tables.discard("shared_state")

    with pytest.raises(ViewRefused, match="used in the data center 'dc2'"):
        await create(server)
    assert "shared_state" not in server.tables

    server.local_datacenter = "dc2"
    assert (await create(server)).created == ("shared_state",)


async def test_a_table_of_others_is_refused_as_such_before_the_home_is_looked_for_in_it() -> None:
    class Foreign(Server):
        def column_rows(self) -> list[dict[str, Any]]:
            one = {"table_name": "configuration_events", "column_name": "id", "type": "int"}
            return [one | {"kind": "partition_key", "position": 0}]

        async def execute(self, *_: Any) -> list[dict[str, Any]]:
            raise ViewRefused("Undefined column name sequence")

    server = Foreign(tables={"configuration_events"})
    with pytest.raises(ViewRefused, match="tables of other columns"):
        await create(server)
    assert server.tables == {"configuration_events"}
