"""`postroad pipeline fetch`, `archive`, `export`, `forget`: fill a lake, and keep it."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import click

from postroad.adapters.clocks import MachineClock
from postroad.adapters.disk.files import DiskFiles
from postroad.bootstrap.archiving import LakeLock, begin_archive, check_lake, name_of, open_archived
from postroad.cli.options import (
    ParsedType,
    json_option,
    lake_option,
    master_option,
    plural,
    queue_option,
    say,
)
from postroad.cli.pipeline import spark
from postroad.cli.pipeline.lake import DAY, AskedLake, LakeRequest, opened_lake, with_lake
from postroad.delivery_settings.lake_catalog import read_catalog
from postroad.distributed.engine.timing import Timing
from postroad.domain.queues.entries import slice_of
from postroad.domain.values.identifiers import EPOCH
from postroad.domain.values.instants import parse_period, rfc3339
from postroad.errors import InvalidInput, StoreDamaged
from postroad.pipeline.addresses import kept_address
from postroad.pipeline.archive.archive import ArchiveClaim, Run, Wanted
from postroad.pipeline.archive.idle_runs import idle_run
from postroad.pipeline.archive.lake_files import KEPT_STATES, LakeFiles, LastRead, digest_of
from postroad.pipeline.archive.planning import finest_window
from postroad.pipeline.java import jars
from postroad.pipeline.spark.lake.catalogs import lake_place
from postroad.settings import Settings, from_environment


@click.command()
def fetch() -> None:
    """Fetch the jars of Spark into POSTROAD_PIPELINE_JARS, by Maven; their checksums are known."""
    folder = spark.jars_folder(from_environment())
    count = jars.fetch(folder)
    click.echo(f"fetched {plural(count, 'jar')} into {folder}")


@click.command()
@with_lake
@spark.wait_option
@json_option
def archive(request: LakeRequest, patience: timedelta, *, as_json: bool) -> None:
    """Copy what ended to the lake in the queue's bucket, slice by slice; of a queue in a directory,
    to the lake in --lake.

    The first run switches the archive on. From then on cleanup waits for it, for a quarter of the
    lifetime of rows; a store in a directory keeps segments for it in DIR/archive, for 7 days, up
    to 1 GiB. A run may be stopped and repeated at any time. --from and --to are starts of slices;
    without them all are archived."""
    settings, first, before = from_environment(), request.first, request.before
    local = spark.lake_directory(request.url, request.folder)
    if local is not None and (first is not None or before is not None):
        raise InvalidInput("--from and --to choose slices, which a queue in a directory has not")

    def wanted(start: datetime) -> bool:
        return (first is None or first <= start) and (before is None or start < before)

    through: datetime | None = None
    damaged: Sequence[str] = ()
    if local is None:
        run, through = asyncio.run(_archive(request, settings, wanted, patience))
    else:
        run, damaged = asyncio.run(_archive_store(request, local, settings, patience))
    lag = None if through is None else run.ended - through
    spark.write_summary(settings.pipeline.summary_file, run.counts, lag=lag)
    values = {
        "run_id": str(run.run_id),
        "began_at": rfc3339(run.began),
        "ended_at": rfc3339(run.ended),
        **run.counts,
    }
    text = ", ".join(f"{count} {name}" for name, count in run.counts.items())
    say(values, as_json=as_json, text=f"archived: {text or 'nothing is closed yet'}")
    if damaged:
        raise StoreDamaged(
            f"not all of {', '.join(damaged)} could be read: the time of it is a gap of the lake",
            hint="files of the archive were renamed, and are kept; of the log, run postroad verify",
        )


async def _archive(
    request: LakeRequest, settings: Settings, wanted: Wanted, patience: timedelta
) -> tuple[Run, datetime | None]:
    """Return the run, and the instant before which all is archived."""
    files = spark.installed(settings)
    key, catalog = spark.address_key(settings), read_catalog(settings.pipeline.catalog)
    with spark.run_stores(settings) as stores:
        async with open_archived(request.url, settings, "name its lake with --lake") as queue:
            from postroad.pipeline.spark import spark_conf
            from postroad.pipeline.spark.columns import column_of
            from postroad.pipeline.spark.jobs import archiving

            source = archiving.ArchivedTables(
                view=queue.view,
                keyspace=queue.cassandra.keyspace,
                queue=str(queue.name),
                step=finest_window(queue.events),
                row_lifetime=queue.row_lifetime,
                timing=Timing(),
                settings=spark_conf.cassandra_settings(queue.cassandra, stores),
            )
            place = spark.place_of(queue, catalog)
            async with spark.spark_session(settings, stores, files, request.master) as session:
                kept = column_of(settings.pipeline.addresses, key)
                run = await archiving.archive(
                    session, source, place, kept, MachineClock(), wanted, patience
                )
            return run, (await queue.view.limits()).archived_through


async def _archive_store(
    request: LakeRequest, lake: Path, settings: Settings, patience: timedelta
) -> tuple[Run, Sequence[str]]:
    """Put into a lake what the store of a URL recorded since the last run; return the run, and the
    files that could not be read whole. `patience`: how long it waits for another run. Raises:
    NotInstalled, InvalidQueueURL, InvalidInput, QueueNotFound, StoreDamaged, ArchiveUnderWay,
    LakeTooNew, JobFailed."""
    kept = kept_address(settings.pipeline.addresses, spark.address_key(settings))
    name, clock = name_of(request.url), MachineClock()
    catalog = read_catalog(settings.pipeline.catalog)
    check_lake(lake, name)
    spark.installed(settings)  # a store keeps nothing for a run that cannot be
    layout = begin_archive(request.url)
    place = lake_place(f"file:{lake}", {}, catalog, None)
    known = LakeFiles(lake, None if place.is_a_folder else place.namespace)
    async with LakeLock(lake, name, clock, patience):
        is_there = not place.is_a_folder or (lake / place.namespace).exists()
        run_id = uuid4()
        idle = idle_run(DiskFiles(), layout, known, clock, run_id) if is_there else None
        if idle is not None:
            return idle, ()
        async with spark.open_spark(settings, request.master, brief=True) as session:
            from postroad.pipeline.spark.jobs.store_archiving import archive_history
            from postroad.pipeline.spark.lake.lake import in_thread
            from postroad.pipeline.spark.lake.store_lake import open_store_lake

            tables = await in_thread(lambda: open_store_lake(session, lake, catalog, create=True))
            source = (DiskFiles(), layout, kept)
            found = await in_thread(archive_history, tables, *source, clock, run_id)
            await in_thread(tables.expire, clock.now() - KEPT_STATES)
        if not found.damaged:
            known.put_last_read(LastRead(digest_of(found.ends), found.run.began))
        return found.run, found.damaged


def _age(text: str) -> timedelta:
    """Read whole days such as `400d`: the lake is cut by days. Raises: InvalidInput."""
    try:
        age = parse_period(text)
    except InvalidInput:
        age = timedelta(0)
    if not timedelta(0) < age < datetime.now(UTC) - EPOCH or age % DAY:
        raise InvalidInput(f"{text!r} is no age in whole days: write it as in 400d")
    return age


AGE = ParsedType("age", _age)


PATTERN_SIGNS = frozenset("{}[]*?\\")
"""Characters that make a path a pattern for Hadoop, below Spark."""

TABLES, KINDS = ("entries", "slices", "runs"), ("parquet", "json")


@click.command()
@click.argument("place", metavar="DIR")
@click.option("--table", type=click.Choice(TABLES), default=TABLES[0], show_default=True)
@click.option("--format", "kind", type=click.Choice(KINDS), default=KINDS[0], show_default=True)
@with_lake
@json_option
def export(place: str, table: str, kind: str, request: LakeRequest, *, as_json: bool) -> None:
    """Write a table of the lake into a new directory, or a folder of any store that Spark knows, as
    Parquet or as JSON lines. Addresses are as the lake keeps them."""
    written = (table, _place(place), kind)
    count, notes = asyncio.run(_export(request, written))
    lines = (f"exported {count} {table} to {place}", *(f"note: {each}" for each in notes))
    values = {"table": table, "folder": place, "count": count, "notes": list(notes)}
    say(values, as_json=as_json, text="\n".join(lines))


def _place(folder: str) -> str:
    """Return the URI of a folder. Raises: InvalidInput for a directory that exists, and for one
    whose name Spark would read as a pattern."""
    if urlsplit(folder).scheme:
        return folder
    path = Path(folder).absolute()
    if path.exists():
        raise InvalidInput(f"{folder} exists: name a new directory")
    if signs := PATTERN_SIGNS.intersection(str(path)):
        raise InvalidInput(f"{path}: Spark takes {min(signs)!r} as a pattern: name another place")
    return f"file:{path}"  # Hadoop takes no escapes


async def _export(
    request: LakeRequest, wanted: tuple[str, str, str]
) -> tuple[int, tuple[str, ...]]:
    from postroad.pipeline.spark.jobs.archiving import export as write
    from postroad.pipeline.spark.lake.lake import in_thread

    table, place, kind = wanted
    async with opened_lake(request) as lake:
        coverage = await lake.coverage()
        count = await in_thread(write, lake.lake, table, coverage.stretch, place, kind)
        spark.write_summary(lake.settings.pipeline.summary_file, {table: count})
        return count, coverage.sentences()


@click.command()
@click.argument("address", required=False)
@queue_option
@click.option(
    "--older-than",
    "age",
    type=AGE,
    help="What was queued before the day (in UTC) that lies so long ago, e.g. 400d.",
)
@lake_option
@master_option
@spark.wait_option
@json_option
def forget(
    address: str | None,
    url: str,
    age: timedelta | None,
    folder: Path | None,
    master: str,
    patience: timedelta,
    as_json: bool,
) -> None:
    """Forget an address, or what is older than an age: the lake is rewritten, and its former states
    are deleted at once.

    Of an address, the entries stay without it, so that traffic stays true. It is forgotten plain
    and as the hash by the present key. The view keeps its rows until they are cleaned, and a later
    run of the archive copies those that the lake does not have for good yet: forget it again then.
    """
    if (address is None) == (age is None):
        raise click.UsageError("name an ADDRESS, or give --older-than")
    day = None if age is None else slice_of(MachineClock().now() - age, DAY)
    count = asyncio.run(_forget(LakeRequest(url, folder, master), address, day, patience))
    what = "entries without the address now"
    if day is not None:
        what = f"entries forgotten, which were queued before {rfc3339(day)}"
    values = {"entries": count, "before": None if day is None else rfc3339(day)}
    say(values, as_json=as_json, text=f"{count} {what}")


async def _forget(
    request: LakeRequest, address: str | None, day: datetime | None, patience: timedelta
) -> int:
    from postroad.pipeline.spark.jobs import archiving

    async with opened_lake(request) as lake:
        if day is not None:
            what = archiving.before(day)
        else:
            key = spark.address_key(lake.settings)
            what = archiving.of_address(address or "", key or None)
        claimed = _claim(lake, spark.lake_directory(request.url, request.folder), patience)
        run = await archiving.forget(lake.lake, claimed, MachineClock(), what)
        spark.write_summary(lake.settings.pipeline.summary_file, run.counts)
        return run.counts["entries"]


def _claim(lake: AskedLake, folder: Path | None, patience: timedelta) -> Callable[[UUID], Any]:
    """Return what keeps other runs from writing the lake."""
    if lake.opened is not None:
        view = lake.opened.queue.view
        return lambda run_id: ArchiveClaim(view, MachineClock(), run_id, patience)
    assert folder is not None
    return lambda _: LakeLock(folder, lake.name, MachineClock(), patience)
