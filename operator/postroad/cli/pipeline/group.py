"""`postroad pipeline …`: the jobs of the data pipeline. Those that run Spark import it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import click

from postroad.adapters.machine.clocks import MachineClock
from postroad.bootstrap.archiving import open_archived
from postroad.cli.options import json_option, queue_option, say
from postroad.cli.pipeline.answers import advise, destinations, report, trace, traffic
from postroad.cli.pipeline.keeping import archive_store, export, forget
from postroad.cli.pipeline.servers import ages, apply, audit
from postroad.cli.pipeline.spark import (
    INSTANT,
    address_key,
    installed,
    jars_folder,
    lake_directory,
    lake_option,
    master_option,
    run_stores,
    spark_session,
    wait_option,
    write_summary,
)
from postroad.distributed.engine.timing import Timing
from postroad.domain.values.instants import rfc3339
from postroad.errors import InvalidInput, StoreDamaged
from postroad.pipeline.archive.archive import Wanted
from postroad.pipeline.archive.planning import finest_window
from postroad.pipeline.java import jars
from postroad.pipeline.runs import Run
from postroad.settings import Settings, from_environment


@click.group()
def pipeline() -> None:
    """Keep what the view of a queue forgets, and answer from it. It needs the extra `pipeline`,
    Java 17, and the jars that `postroad pipeline fetch` fetches once."""


for _job in (traffic, destinations, trace, advise, ages, audit, report, apply, export, forget):
    pipeline.add_command(_job)


@pipeline.command()
def fetch() -> None:
    """Fetch the jars of Spark into POSTROAD_PIPELINE_JARS, by Maven; their checksums are known."""
    folder = jars_folder(from_environment())
    count = jars.fetch(folder)
    click.echo(f"fetched {count} jar{'' if count == 1 else 's'} into {folder}")


@pipeline.command()
@queue_option
@click.option("--from", "first", type=INSTANT, help="Only slices that start from then on.")
@click.option("--to", "before", type=INSTANT, help="Only slices that start before then.")
@lake_option
@master_option
@wait_option
@json_option
def archive(
    url: str,
    first: datetime | None,
    before: datetime | None,
    folder: Path | None,
    master: str,
    patience: timedelta,
    as_json: bool,
) -> None:
    """Copy what ended to the lake in the queue's bucket, slice by slice; of a queue in a directory,
    to the lake in --lake.

    The first run switches the archive on. From then on cleanup waits for it, for a quarter of the
    lifetime of rows; a store in a directory keeps segments for it in DIR/archive, for 7 days, up
    to 1 GiB. A run may be stopped and repeated at any time.
    """
    settings = from_environment()
    local = lake_directory(url, folder)
    if local is not None and (first is not None or before is not None):
        raise InvalidInput("--from and --to choose slices, which a queue in a directory has not")

    def wanted(start: datetime) -> bool:
        return (first is None or first <= start) and (before is None or start < before)

    through: datetime | None = None
    damaged: Sequence[str] = ()
    if local is None:
        run, through = asyncio.run(_archive(url, settings, master, wanted, patience))
    else:
        run, damaged = asyncio.run(archive_store(url, local, settings, master, patience))
    lag = None if through is None else run.ended - through
    write_summary(settings.pipeline.summary_file, run.counts, lag=lag)
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
    url: str, settings: Settings, master: str, wanted: Wanted, patience: timedelta
) -> tuple[Run, datetime | None]:
    """Return the run, and the instant before which all is archived."""
    files = installed(settings)
    key = address_key(settings)
    with run_stores(settings) as stores:
        async with open_archived(url, settings, "name its lake with --lake") as queue:
            from postroad.pipeline.spark.address_columns import column_of
            from postroad.pipeline.spark.jobs import archiving
            from postroad.pipeline.spark.reading import servers

            source = archiving.ArchivedTables(
                view=queue.view,
                keyspace=queue.cassandra.keyspace,
                queue=str(queue.name),
                step=finest_window(queue.events),
                row_lifetime=queue.row_lifetime,
                timing=Timing(),
                settings=servers.cassandra_settings(queue.cassandra, stores),
            )
            place = archiving.LakePlace(
                servers.lake_folder(queue.bucket, queue.name), servers.s3_settings(queue.s3)
            )
            async with spark_session(settings, stores, files, master) as session:
                kept = column_of(settings.pipeline.addresses, key)
                run = await archiving.archive(
                    session, source, place, kept, MachineClock(), wanted, patience
                )
            return run, (await queue.view.limits()).archived_through
