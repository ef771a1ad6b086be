"""Tables of other columns are distinguished from the schema's, by each difference."""

from __future__ import annotations

import pytest

from postroad.adapters.cassandra import schema
from postroad.adapters.cassandra.table_columns import (
    Column,
    ColumnName,
    declared_by,
    differences,
    found_in,
    refuse_others,
)
from postroad.errors import ViewRefused


def declared() -> dict[ColumnName, Column]:
    """The columns of the whole schema."""
    return {name: each for text in schema.statements() for name, each in declared_by(text).items()}


def test_every_column_of_the_schema_is_read() -> None:
    found = declared()

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
        for (table, name), each in declared().items()
    ]

    assert differences(declared(), found_in(rows)) == []


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
    present = declared()
    if found is None:
        del present[name]
    else:
        present[name] = found

    assert differences(declared(), present) == [difference]
    with pytest.raises(ViewRefused, match="tables of other columns") as raised:
        refuse_others(declared(), present)
    assert difference in str(raised.value)


def test_what_is_missing_or_added_as_a_whole_is_no_difference() -> None:
    """A table is created; a column that the schema lacks may be of a later release."""
    present = {name: each for name, each in declared().items() if name[0] != "slices"}
    present["limits", "of_a_later_release"] = Column("int", "regular")

    assert differences(declared(), present) == []


def test_many_differences_are_counted() -> None:
    present = {("limits", "queue"): Column("text", "partition_key", 0)}

    with pytest.raises(ViewRefused, match="and 1 more"):
        refuse_others(declared(), present)
