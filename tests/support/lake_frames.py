"""Frames of Spark as the lines that tests compare."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.values.instants import optional_instant
from support.entry_lines import EntryLine

ARRAYS = ("recipients", "domains", "domain_counts")


def lines_in(entries: DataFrame) -> list[EntryLine]:
    """All entries of a frame, in order."""
    moments = {name for name, kind in entries.dtypes if kind == "timestamp"}
    columns = [
        F.unix_micros(name).alias(name) if name in moments else name for name in entries.columns
    ]
    found = [row.asDict() for row in entries.select(*columns).collect()]
    for line in found:
        line.update({name: optional_instant(line[name]) for name in moments})
        line.update({name: tuple(line[name] or ()) for name in ARRAYS})
        if line["outcomes"] is not None:
            line["outcomes"] = tuple(tuple(each) for each in line["outcomes"])
    return in_order(EntryLine(**line) for line in found)


def in_order(lines: Iterable[EntryLine]) -> list[EntryLine]:
    return sorted(lines, key=attrgetter("slice_start", "bucket_id", "enqueue_id"))
