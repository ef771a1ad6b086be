"""Columns make the same lines of the parts of mails as plain Python, whichever parts are there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from crash.lossy import LossyFiles
from crash.world import ROOT, start
from postroad.domain.values.instants import instant
from postroad.embedded.history import HistorySegment, read_history
from postroad.embedded.log.layout import Layout
from postroad.pipeline.addresses import kept_address
from postroad.pipeline.archive.embedded_parts import HistoryPart, HistoryReader
from postroad.pipeline.spark.lake.history import entry_lines, read_parts, unfinished_mails
from postroad.pipeline.spark.lake.schema import ENTRIES, PARTS
from postroad.settings.pipeline import AddressKind
from support.memory.clock import ManualClock
from support.plain_fold import Line, lines_of
from support.store_ledger import MINUTE, RandomHistory

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

LAYOUT = Layout(ROOT, ROOT / "mail")


@dataclass(frozen=True)
class Known:
    """Parts in place of a reader of segments."""

    known: Sequence[Sequence[HistoryPart]]

    @property
    def segments(self) -> list[tuple[HistorySegment, int]]:
        return [(HistorySegment(LAYOUT.log, b"", 0, 1), 0) for _ in self.known]

    def parts(self, number: int) -> Iterator[HistoryPart]:
        return iter(self.known[number])


async def histories(seed: int) -> list[list[HistoryPart]]:
    """The parts of each mail of a random history."""
    files, clock = LossyFiles(), ManualClock()
    files.make_directory(LAYOUT.archive)
    queue = await start(files, clock)
    await queue.maintenance.recovering
    history = RandomHistory(queue, clock, seed)
    for _ in range(150):
        await history.step()
    await clock.advance(2 * MINUTE)
    await queue.maintenance.checkpoint()
    found = read_history(files, LAYOUT, 0)
    assert found is not None
    kept = kept_address(AddressKind.PLAIN, b"")
    reader = HistoryReader(files, LAYOUT, kept, [(each, 0) for each in found.segments])
    mails = defaultdict(list)
    for number in range(len(found.segments)):
        for part in reader.parts(number):
            if part.mail_id:
                mails[part.mail_id].append(part)
    await queue.close()
    return list(mails.values())


async def test_columns_make_the_lines_of_plain_python(spark: SparkSession) -> None:
    draw, cases = Random(1), dict[str, list[HistoryPart]]()
    for parts in [each for seed in range(3) for each in await histories(seed)]:
        fewer = [parts, *(list(each) for each in combinations(parts, len(parts) - 1))]
        for some in (*fewer, [*parts, *parts]):
            draw.shuffle(some)
            name = f"mail{len(cases)}"
            cases[name] = [each._replace(mail_id=name) for each in some]
    every = [part for parts in cases.values() for part in parts]
    draw.shuffle(every)
    segments = [every[place : place + 500] for place in range(0, len(every), 500)]
    schema = spark.createDataFrame([], PARTS.schema).schema
    taken = read_parts(spark, cast("HistoryReader", Known(segments)), schema).localCheckpoint()

    lines = entry_lines(taken)
    whole = {part.mail_id for part in every} - {
        row.mail_id for row in unfinished_mails(taken).collect()
    }

    assert lines.dtypes == [(name, kind) for name, (kind, _) in ENTRIES.columns.items()]
    moments = [name for name, kind in lines.dtypes if kind == "timestamp"]
    rows = lines.withColumns({each: F.unix_micros(each) for each in moments}).collect()
    got: dict[str, list[Line]] = defaultdict(list)
    for row in sorted((plain(each.asDict(recursive=True), moments) for each in rows), key=order):
        got[row["mail_id"]].append(row)
    want = {name: lines_of(parts) for name, parts in cases.items()}
    assert got == {name: sorted(each.lines, key=order) for name, each in want.items() if each.lines}
    assert whole == {name for name, each in want.items() if each.is_whole}
    assert 50 < len(whole) < len(cases) - 50


def plain(row: Line, moments: Sequence[str]) -> Line:
    seen = {each: instant(row[each]) for each in moments if row[each] is not None}
    return row | seen


def order(line: Line) -> Any:
    return line["mail_id"], str(line["enqueue_id"])
