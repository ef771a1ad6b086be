"""`postroad pipeline archive` of a queue in a directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import click

from postroad.adapters.disk.files import DiskFiles
from postroad.adapters.machine.clocks import MachineClock
from postroad.bootstrap.archived_store import LakeLock, begin_archive, check_lake, name_of
from postroad.cli.options import json_option, queue_option, say
from postroad.cli.pipeline.lake import DAY, AskedLake, opened_lake
from postroad.cli.pipeline.spark import (
    INSTANT,
    address_key,
    installed,
    lake_directory,
    lake_option,
    master_option,
    open_spark,
    wait_option,
    write_summary,
)
from postroad.domain.queues.slices import slice_of
from postroad.domain.values.durations import parse_duration
from postroad.domain.values.identifiers import EPOCH
from postroad.domain.values.instants import rfc3339
from postroad.errors import InvalidInput
from postroad.pipeline.addresses import kept_address
from postroad.pipeline.archive.claim import ArchiveClaim
from postroad.pipeline.runs import Run
from postroad.settings import Settings


async def archive_store(
    url: str, lake: Path, settings: Settings, master: str, patience: timedelta
) -> tuple[Run, Sequence[str]]:
    """Put into a lake what the store of a URL recorded since the last run; return the run, and the
    files that could not be read whole. `patience`: how long it waits for another run. Raises:
    NotInstalled, InvalidQueueURL, InvalidInput, QueueNotFound, StoreDamaged, ArchiveUnderWay,
    LakeTooNew, JobFailed."""
    kept = kept_address(settings.pipeline.addresses, address_key(settings))
    name, clock = name_of(url), MachineClock()
    check_lake(lake, name)
    installed(settings)  # a store keeps nothing for a run that cannot be
    layout = begin_archive(url)
    async with LakeLock(lake, name, clock, patience), open_spark(settings, master) as session:
        from postroad.pipeline.spark.jobs.store_archiving import archive_history
        from postroad.pipeline.spark.lake.claimed_lake import in_thread
        from postroad.pipeline.spark.lake.store_lake import open_store_lake

        tables = await in_thread(lambda: open_store_lake(session, lake, create=True))
        source = (DiskFiles(), layout, kept)
        found = await in_thread(archive_history, tables, *source, clock, uuid4())
        return found.run, found.damaged


class Age(click.ParamType[timedelta]):
    """Whole days such as `400d`: the lake is cut by days."""

    name = "age"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        age = _age(value)
        if not timedelta(0) < age < datetime.now(UTC) - EPOCH or age % DAY:
            self.fail(f"{value!r} is no age in whole days: write it as in 400d", param, ctx)
        return age


def _age(text: str) -> timedelta:
    """Return an age; 0 for what is none."""
    days = text.removesuffix("d")
    try:
        if days != text and days.isascii() and days.isdigit():
            return timedelta(days=int(days))
        return parse_duration(text)
    except (InvalidInput, OverflowError):
        return timedelta(0)


PATTERN_SIGNS = frozenset("{}[]*?\\")
"""What makes a path a pattern for Hadoop, below Spark."""

TABLES, KINDS = ("entries", "slices", "runs"), ("parquet", "json")


@click.command()
@click.argument("place", metavar="DIR")
@queue_option
@click.option("--table", type=click.Choice(TABLES), default=TABLES[0], show_default=True)
@click.option("--format", "kind", type=click.Choice(KINDS), default=KINDS[0], show_default=True)
@click.option("--from", "first", type=INSTANT, help="From then on; default: a day before --to.")
@click.option("--to", "before", type=INSTANT, help="Before then; default: until now.")
@lake_option
@master_option
@json_option
def export(
    place: str,
    url: str,
    table: str,
    kind: str,
    first: datetime | None,
    before: datetime | None,
    folder: Path | None,
    master: str,
    as_json: bool,
) -> None:
    """Write a table of the lake into a new directory, or a folder of any store that Spark knows, as
    Parquet or as JSON lines. Addresses are as the lake keeps them."""
    written = (table, _place(place), kind)
    count, notes = asyncio.run(_export((url, folder, master), (first, before), written))
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


_Lake = tuple[str, Path | None, str]
"""A queue's URL, the directory of its lake, and Spark's master."""


async def _export(
    of: _Lake,
    asked: tuple[datetime | None, datetime | None],
    wanted: tuple[str, str, str],
) -> tuple[int, tuple[str, ...]]:
    from postroad.pipeline.spark.jobs.exporting import export as write
    from postroad.pipeline.spark.lake.claimed_lake import in_thread

    table, place, kind = wanted
    async with opened_lake(*of, asked) as lake:
        coverage = await lake.coverage()
        count = await in_thread(write, lake.lake, table, coverage.stretch, place, kind)
        return count, coverage.sentences()


@click.command()
@click.argument("address", required=False)
@queue_option
@click.option(
    "--older-than",
    "age",
    type=Age(),
    help="What was queued before the day (in UTC) that lies so long ago, e.g. 400d.",
)
@lake_option
@master_option
@wait_option
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
    count = asyncio.run(_forget((url, folder, master), address, day, patience))
    what = "entries without the address now"
    if day is not None:
        what = f"entries forgotten, which were queued before {rfc3339(day)}"
    values = {"entries": count, "before": None if day is None else rfc3339(day)}
    say(values, as_json=as_json, text=f"{count} {what}")


async def _forget(of: _Lake, address: str | None, day: datetime | None, patience: timedelta) -> int:
    from postroad.pipeline.spark.jobs import forgetting

    async with opened_lake(*of, (None, None)) as lake:
        if day is not None:
            what = forgetting.before(day)
        else:
            key = address_key(lake.settings)
            what = forgetting.of_address(address or "", key or None)
        claimed = _claim(lake, lake_directory(of[0], of[1]), patience)
        run = await forgetting.forget(lake.lake, claimed, MachineClock(), what)
        write_summary(lake.settings.pipeline.summary_file, run.counts)
        return run.counts["entries"]


def _claim(lake: AskedLake, folder: Path | None, patience: timedelta) -> Callable[[UUID], Any]:
    """Return what keeps other runs from writing the lake."""
    if lake.opened is not None:
        view = lake.opened.queue.view
        return lambda run_id: ArchiveClaim(view, MachineClock(), run_id, patience)
    assert folder is not None
    return lambda _: LakeLock(folder, lake.name, MachineClock(), patience)
