"""After `forget`, no file of the lake has the address, or its hash."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from pipeline.lake_entries import NOON, Entry, History, delivered, frame
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.domain.queues.entries import Partition, slice_of
from postroad.pipeline.addresses import hashed_address
from postroad.pipeline.archive.archive import ArchiveClaim
from postroad.pipeline.archive.planning import Stretch
from postroad.pipeline.spark.jobs.archiving import before, export, forget, of_address
from postroad.pipeline.spark.lake.catalogs import LakePlace
from postroad.pipeline.spark.lake.lake import LakeTables, open_lake
from postroad.ports.view import View
from support.memory.clock import ManualClock
from support.memory.fault_injection import FaultInjector, no_fault

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
CATALOGS = count()
KEY = b"a key of some length"
ADDRESS, OTHER = "forgotten@One.example", "kept@b.example"
HASH = hashed_address(ADDRESS, KEY)
CLOCK = ManualClock()


@pytest.fixture
def view() -> View:
    servers = MemoryServers(MemoryWorld(CLOCK), FaultInjector(no_fault))
    return servers.views().view("mail.outgoing")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mail.outgoing"


@pytest.fixture
def lake(spark: SparkSession, folder: Path) -> LakeTables:
    """A lake whose files are not compressed, with what an address sent and got, plain and hashed,
    beside others."""
    catalog = f"forgetting{next(CATALOGS)}"
    made = open_lake(spark, LakePlace(f"file:{folder}"), create=True, catalog=catalog)
    spark.sql(
        f"ALTER TABLE {catalog}.lake.entries SET TBLPROPERTIES"
        " ('write.parquet.compression-codec' = 'uncompressed')"
    )
    history = History()
    for sender, recipient in ((ADDRESS, OTHER), (OTHER, "Forgotten@one.example"), (HASH, OTHER)):
        history.end(history.accept(sender, recipient, OTHER), "delivered", delivered(count=2))
        history.now += 2 * HOUR
    history.end(history.accept(OTHER, "forgotten@one.EXAMPLE"), "removed")
    history.now += DAY
    history.accept(OTHER, HASH)
    for _ in range(2):  # of another day, and written anew
        lines = [placed(each) for each in history.entries]
        partitions = {Partition(each["slice_start"], 0) for each in lines}
        made.put_entries(frame(spark, lines), partitions)
    return made


def placed(entry: Entry) -> Entry:
    """An entry with its place. The domain of a hashed address is plain."""
    changed = {"slice_start": slice_of(entry["enqueued_at"], HOUR), "bucket_id": 0}
    if entry["sender"] == HASH:
        changed["sender_domain"] = "one.example"
    if HASH in entry["recipients"]:
        changed["domains"] = ["one.example"]
    return entry | changed


def files_with(folder: Path, *words: str) -> list[Path]:
    """The files that have one of these words; of metadata, which is compressed, its names."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    return [each for each in files if any(word.encode() in each.read_bytes() for word in words)]


def claimed(view: View) -> Callable[[UUID], ArchiveClaim]:
    return lambda run_id: ArchiveClaim(view, CLOCK, run_id)


async def test_no_file_has_a_forgotten_address(
    spark: SparkSession, lake: LakeTables, folder: Path, view: View
) -> None:
    (folder / "lake/entries/data/left.parquet").write_bytes(HASH.encode())  # by a run that stopped
    words = ("orgotten@one.example", "forgotten@One.example", "forgotten@one.EXAMPLE", HASH)
    assert len(files_with(folder, *words)) > 4
    before = lake.entries().count()

    run = await forget(lake, claimed(view), CLOCK, of_address("forgotten@ONE.example", KEY))

    # The local part has a case: that of another mailbox stays.
    assert [each.name for each in files_with(folder, "Forgotten@one.example")] != []
    assert files_with(folder, *words[1:]) == []
    assert run.counts == {"entries": 4}
    assert lake.entries().count() == before
    senders = {row.sender for row in lake.entries().select("sender").collect()}
    assert senders == {None, OTHER}
    # Metadata has the bounds of columns, compressed: what is there is of the present state alone.
    names = {row.path.rsplit("/", 1)[1] for row in manifests(spark, lake)}
    stored = {each.name for each in (folder / "lake/entries/metadata").glob("*-m*.avro")}
    assert stored == names
    assert len(list((folder / "lake/entries/metadata").glob("snap-*.avro"))) == 1
    listed = spark.sql(f"SELECT data_file FROM {lake._name('entries')}.all_entries").collect()
    assert len(listed) == 5
    assert not any(word in str(row) for row in listed for word in ("kept@", "orgotten@", HASH[:8]))


def manifests(spark: SparkSession, lake: LakeTables):  # type: ignore[no-untyped-def]
    return spark.sql(f"SELECT path FROM {lake._name('entries')}.all_manifests").collect()


async def test_what_is_old_is_forgotten_day_by_day(
    lake: LakeTables, folder: Path, view: View
) -> None:
    run = await forget(lake, claimed(view), CLOCK, before(slice_of(NOON + DAY, DAY)))

    assert run.counts == {"entries": 4}
    assert lake.entries().count() == 1
    assert files_with(folder, "One.example") == []
    again = await forget(lake, claimed(view), CLOCK, before(slice_of(NOON + DAY, DAY)))
    assert again.counts == {"entries": 0}


async def test_what_a_slice_has_of_the_day_that_is_named_stays(
    spark: SparkSession, lake: LakeTables, view: View
) -> None:
    """A slice of five hours begins before midnight and ends behind it."""
    midnight = slice_of(NOON + DAY, DAY)
    history, start = History(2, midnight - HOUR), midnight - 3 * HOUR
    for _ in range(2):
        history.accept(OTHER, OTHER)
        history.now += 2 * HOUR
    lines = [{**each, "slice_start": start, "bucket_id": 0} for each in history.entries]
    lake.put_entries(frame(spark, lines), {Partition(start, 0)})

    run = await forget(lake, claimed(view), CLOCK, before(midnight))

    assert run.counts == {"entries": 5}
    left = {row.enqueue_id for row in lake.entries().select("enqueue_id").collect()}
    assert len(left) == 2
    assert lines[1]["enqueue_id"] in left


@pytest.mark.parametrize("kind", ["json", "parquet"])
async def test_a_stretch_is_exported(
    spark: SparkSession, lake: LakeTables, tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "out"

    found = export(lake, "entries", Stretch(NOON, NOON + 3 * HOUR), place.as_uri(), kind)

    assert found == 2
    if kind == "json":
        texts = "".join(each.read_text() for each in sorted(place.glob("*.json")))
        moments = {json.loads(line)["enqueued_at"] for line in texts.splitlines()}
        assert moments == {"2026-03-02T12:00:00.000Z", "2026-03-02T14:00:00.000Z"}
    else:
        assert spark.read.parquet(place.as_uri()).columns == lake.entries().columns
