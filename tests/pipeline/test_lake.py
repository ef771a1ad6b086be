"""The lake over Iceberg: commits replace what they name and nothing else, and a run that was
stopped anywhere leaves what the next one completes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.entries import Entry, Mark, Partition, PurgeWatermark, place
from postroad.domain.values.identifiers import id_at
from postroad.errors import JobFailed, LakeNotFound, LakeTooNew
from postroad.pipeline.archive.archive import Run
from postroad.pipeline.archive.planning import ArchivedPartition, Gap
from postroad.pipeline.spark.lake.catalogs import LakePlace
from postroad.pipeline.spark.lake.extent import Extent, extent_of
from postroad.pipeline.spark.lake.lake import LakeTables, in_thread, open_lake, ranges_of
from postroad.pipeline.spark.lake.schema import ENTRIES, LAKE_TABLES, LakeTable
from postroad.pipeline.spark.session import translated
from postroad.ports.marks import PartitionVersion
from support.archive_story import NO_STOP, Entries, Stopped, Story, happen
from support.entry_lines import EntryLine, entry_line
from support.in_memory_cluster import InMemoryCluster
from support.lake_frames import in_order, lines_in

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

START = datetime(2026, 1, 1, 10, tzinfo=UTC)
WINDOW, HOUR = timedelta(minutes=30), timedelta(hours=1)
CATALOGS = count()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"file:{tmp_path}/mail.outgoing"


@pytest.fixture
def lake(spark: SparkSession, folder: str) -> LakeTables:
    return open_lake(spark, LakePlace(folder), create=True, catalog=f"lake{next(CATALOGS)}")


def an_entry(at: datetime, number: int, recipients: tuple[str, ...] = ("b@example.net",)) -> Entry:
    key = place(id_at(at, number, number), WINDOW, 2)
    return Entry(
        key=key,
        mail_id=key.enqueue_id,
        envelope=Envelope("a@example.org", recipients),
        blob_key="key",
        size_bytes=100 + number,
        accepted_at=at,
        enqueued_at=at,
    )


def lines_of(slices: range, state: Mark | None = None) -> list[EntryLine]:
    """Four entries in each of these slices, two in each bucket."""
    return [
        entry_line(an_entry(START + number * WINDOW, each), state)
        for number in slices
        for each in range(4)
    ]


def partitions_of(lines: Iterable[EntryLine]) -> set[Partition]:
    return {Partition(line.slice_start, line.bucket_id) for line in lines}


def frame(spark: SparkSession, lines: Iterable[EntryLine]) -> DataFrame:
    return spark.createDataFrame(list(lines), ENTRIES.schema)


def stored(lake: LakeTables) -> list[EntryLine]:
    return lines_in(lake.entries())


def test_the_entries_of_the_named_partitions_are_replaced_and_no_others(
    spark: SparkSession, lake: LakeTables
) -> None:
    """Also where an hour holds both, and the first hour and the last have others between."""
    before = lines_of(range(8))
    lake.put_entries(frame(spark, before), partitions_of(before))
    assert stored(lake) == in_order(before)

    after = lines_of(range(8), Mark(delivered_at=START + HOUR))
    named = {each for each in partitions_of(after) if each.bucket_id == 1} & partitions_of(
        lines_of(range(1)) + lines_of(range(6, 8))
    )
    assert len(named) == 3
    lake.put_entries(frame(spark, after), named)

    expected = [
        new if Partition(old.slice_start, old.bucket_id) in named else old
        for old, new in zip(before, after, strict=True)
    ]
    assert stored(lake) == in_order(expected)
    lake.put_entries(frame(spark, after), named)
    assert stored(lake) == in_order(expected)
    lake.put_entries(frame(spark, []), named)
    assert stored(lake) == in_order(
        each for each in before if Partition(each.slice_start, each.bucket_id) not in named
    )


VERSION = PartitionVersion(
    PurgeWatermark(UUID(int=5), START), UUID(int=4), START + timedelta(microseconds=7), START
)


def test_the_lines_of_slices_come_back_as_they_were_put(lake: LakeTables) -> None:
    archived = [
        ArchivedPartition(Partition(START + day * timedelta(days=1), bucket), version, WINDOW)
        for day in range(3)
        for bucket, version in enumerate((VERSION, PartitionVersion()))
    ]
    lake.put_slices(archived)
    last = ArchivedPartition(
        *(archived[-1].partition, VERSION, HOUR),
        is_settled=True, is_over=True, is_final=True, rows=5, undecodable=1,
    )  # fmt: skip

    lake.put_slices([last])
    lake.put_slices([])

    assert lake.slices(START) == {each.partition: each for each in [*archived[:-1], last]}
    later = archived[2].partition.slice_start
    assert lake.slices(later).keys() == {each.partition for each in archived[2:]}


def test_gaps_are_replaced_and_runs_added(lake: LakeTables) -> None:
    lake.put_gaps((Gap(START, START + HOUR),))
    gaps = (Gap(START, START + 2 * HOUR), Gap(START + 5 * HOUR, START + 6 * HOUR))
    lake.put_gaps(tuple(reversed(gaps)))
    runs = [Run(uuid4(), "archive", START, START + HOUR, {"rows": each}) for each in range(2)]
    for run in runs:
        lake.put_run(run)

    assert lake.gaps() == gaps
    found = lake.run_lines().select("run_id", "job", "counts").collect()
    assert {(row[0], row[1], row[2]["rows"]) for row in found} == {
        (str(run.run_id), "archive", run.counts["rows"]) for run in runs
    }


def test_the_extent_names_what_a_reading_discarded(lake: LakeTables) -> None:
    assert extent_of(lake) == Extent(None, None, None, (), None)
    starts = [START + number * HOUR for number in range(3)]
    kept = [ArchivedPartition(Partition(each, 0), VERSION, WINDOW, rows=1) for each in starts]
    discarded = [ArchivedPartition(Partition(starts[1], each), VERSION, WINDOW) for each in (1, 2)]
    lake.put_slices([*kept, *discarded])
    for job, began in (("archive", START), ("archive", START + HOUR), ("forget", starts[2])):
        lake.put_run(Run(uuid4(), job, began, began + HOUR, {}))
    gaps = (Gap(starts[1], starts[1] + WINDOW),)

    assert extent_of(lake) == Extent(START, START, starts[2] + WINDOW, gaps, START + HOUR)

    lake.put_gaps((Gap(START - HOUR, START),))
    assert extent_of(lake).gaps == (Gap(START - HOUR, START), *gaps)


def test_a_commit_that_would_replace_what_another_writer_wrote_since_fails(
    spark: SparkSession, lake: LakeTables, folder: str
) -> None:
    """As that of a run that was suspended, and came too late."""
    before, after = lines_of(range(3)), lines_of(range(3), Mark(delivered_at=START + HOUR))
    first, second = before[:8], before[8:]
    late = open_lake(spark, LakePlace(folder), create=True, catalog=f"lake{next(CATALOGS)}")
    lake.put_entries(frame(spark, after[:8]), partitions_of(first))

    with pytest.raises(JobFailed, match="conflicting"), translated():
        late.put_entries(frame(spark, first), partitions_of(first))
    late.put_entries(frame(spark, second), partitions_of(second))
    late.put_entries(frame(spark, after[8:]), partitions_of(second))

    assert stored(lake) == in_order(after)


class LaterLake(LakeTables):
    """The lake of a release that knows a further column."""

    _tables: Mapping[str, LakeTable] = {
        **LAKE_TABLES,
        "entries": ENTRIES._replace(columns={**ENTRIES.columns, "later": ("string", "new")}),
    }


@pytest.fixture
def releases(spark: SparkSession, folder: str) -> tuple[LakeTables, LakeTables]:
    """A lake that this release has made, as this and as the later one see it."""
    name = f"lake{next(CATALOGS)}"
    lake = open_lake(spark, LakePlace(folder), create=True, catalog=name)
    return lake, LaterLake(spark, name, LakePlace(folder))


def of_two_buckets(spark: SparkSession) -> tuple[list[EntryLine], list[EntryLine], DataFrame]:
    """Lines of one hour: a part of them, the others, and all of them as the later release has
    them."""
    lines = lines_of(range(2))
    first = [each for each in lines if each.bucket_id == 0]
    others = [each for each in lines if each.bucket_id == 1]
    return first, others, frame(spark, lines).withColumn("later", F.lit("it"))


def test_a_lake_of_an_earlier_release_is_read_and_appended_to(
    spark: SparkSession, releases: tuple[LakeTables, LakeTables]
) -> None:
    earlier, later = releases
    first, others, lines = of_two_buckets(spark)
    earlier.put_entries(frame(spark, first), partitions_of(first))

    later.create()
    assert stored_as_known(later) == in_order(first)
    later.put_entries(lines, partitions_of(others))

    assert stored_as_known(later) == in_order([*first, *others])
    assert later.entries().where("later = 'it'").count() == len(others)


def test_a_lake_of_a_later_release_is_read_and_keeps_what_is_not_known(
    spark: SparkSession, releases: tuple[LakeTables, LakeTables]
) -> None:
    """By the release before, as behind a rollback; it replaces lines of an hour that stays."""
    earlier, later = releases
    first, others, lines = of_two_buckets(spark)
    later.create()
    later.put_entries(lines, partitions_of(first))

    earlier.create()
    assert stored_as_known(earlier) == in_order(first)
    earlier.put_entries(frame(spark, others), partitions_of(others))

    assert stored_as_known(later) == in_order([*first, *others])
    assert later.entries().where("later = 'it'").count() == len(first)


def stored_as_known(lake: LakeTables) -> list[EntryLine]:
    return lines_in(lake.entries().select(*ENTRIES.columns))


def test_files_of_former_states_go_and_the_present_one_stays(
    spark: SparkSession, lake: LakeTables, tmp_path: Path
) -> None:
    lines = lines_of(range(2))
    for _ in range(3):
        lake.put_entries(frame(spark, lines), partitions_of(lines))
    lake.put_gaps((Gap(START, START + HOUR),))
    for number in range(3):
        lake.put_run(Run(UUID(int=number), "archive", START, START, {}))
    (data,) = tmp_path.rglob("entries/data")
    (data / "left.parquet").write_bytes(b"by a run that was stopped")

    def files(table: str = "entries") -> int:
        return len(list(tmp_path.rglob(f"{table}/data/**/*.parquet")))

    now, one = datetime.now(UTC), files() // 3
    lake.expire(now)
    assert files() == 3 * one + 1 > 1
    assert files("runs") == 3

    lake.expire(now + timedelta(days=2))

    assert files() == one
    assert files("runs") == 1, "small files are joined"
    assert lake.run_lines().count() == 3
    assert stored(lake) == in_order(lines)
    assert lake.gaps() == (Gap(START, START + HOUR),)


def test_a_lake_of_a_newer_schema_is_refused(
    spark: SparkSession, lake: LakeTables, folder: str
) -> None:
    name = f"lake{next(CATALOGS)}"
    opened = open_lake(spark, LakePlace(folder), catalog=name)
    assert stored(opened) == []
    spark.sql(f"ALTER TABLE {name}.lake.gaps SET TBLPROPERTIES ('postroad.schema-version' = '2')")

    for create in (False, True):
        with pytest.raises(LakeTooNew, match="gaps is of schema version 2"):
            open_lake(spark, LakePlace(folder), create=create, catalog=name)


async def test_a_lake_opens_in_any_thread(
    spark: SparkSession, lake: LakeTables, folder: str
) -> None:
    """As commands open it, before their session has used a catalog."""
    opened = await in_thread(open_lake, spark.newSession(), LakePlace(folder))

    assert await in_thread(opened.gaps) == ()


def test_a_folder_without_a_lake_is_named(spark: SparkSession, folder: str) -> None:
    with pytest.raises(LakeNotFound, match="nothing was archived"):
        open_lake(spark, LakePlace(folder), catalog=f"lake{next(CATALOGS)}")


def test_hours_that_meet_are_one_range() -> None:
    starts = [START + number * WINDOW for number in (0, 1, 2, 8, 6, 0)]

    assert ranges_of(starts, HOUR) == [
        (START, START + 2 * HOUR),
        (START + 3 * HOUR, START + 5 * HOUR),
    ]


class LakeOfStory:
    """Iceberg's tables beside those of the story in memory, stopped at the same commits."""

    def __init__(self, spark: SparkSession, tables: LakeTables) -> None:
        self._spark = spark
        self._tables = tables
        self.commits_left = NO_STOP

    def _commit(self) -> None:
        if self.commits_left == 0:
            raise Stopped
        self.commits_left -= 1

    async def slices(self, first: datetime) -> Mapping[Partition, ArchivedPartition]:
        return self._tables.slices(first)

    async def gaps(self) -> tuple[Gap, ...]:
        return self._tables.gaps()

    async def put_entries(self, entries: Entries, partitions: Collection[Partition]) -> None:
        self._commit()
        self._tables.put_entries(frame(self._spark, entries.values()), partitions)

    async def put_slices(self, archived: Iterable[ArchivedPartition]) -> None:
        self._commit()
        self._tables.put_slices(archived)

    async def put_gaps(self, gaps: tuple[Gap, ...]) -> None:
        self._commit()
        self._tables.put_gaps(gaps)

    async def put_run(self, run: Run) -> None:
        self._commit()
        self._tables.put_run(run)


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    cluster = InMemoryCluster()
    yield cluster
    await cluster.close()


async def test_the_lake_has_what_the_view_had_however_runs_were_stopped(
    spark: SparkSession, lake: LakeTables, cluster: InMemoryCluster
) -> None:
    own = LakeOfStory(spark, lake)
    story = Story(cluster, await cluster.start(), own)
    await story.run()  # switches the archive on
    chance = random.Random(9)
    for stop in (0, 1, 2, 3, NO_STOP):
        for _ in range(12):
            await happen(story, chance, deeds=8)
        own.commits_left = stop
        try:
            await story.run()
        except Stopped:
            pass
        own.commits_left = NO_STOP
    await story.drain(runs=2)

    expected = in_order(story.had.values())
    assert len({line.state for line in expected}) > 3
    assert stored(lake) == expected
    assert lake.gaps() == ()
    assert all(each.is_final for each in lake.slices(START - HOUR).values())
    await story.run()
    assert stored(lake) == expected
