"""`postroad pipeline traffic`, `destinations`, `trace`, `advise`, `report`: results from a lake."""

import asyncio
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import click

from postroad.cli.pipeline.lake import AskedLake, LakeRequest, lake_job, opened_lake, with_lake
from postroad.cli.pipeline.spark import address_key
from postroad.configuration import observe
from postroad.distributed.engine.timing import Timing
from postroad.domain.configuration.history import replay
from postroad.errors import HistoryMissing, InvalidInput, NotInstalled
from postroad.pipeline.results.lines import (
    TRAFFIC_PARTS,
    AdviceLine,
    DestinationLine,
    JobResult,
    TraceLine,
    TrafficLine,
    sizing,
)
from postroad.pipeline.results.report import PAGE, QueueReport, page


@click.command()
@click.option(
    "--by",
    multiple=True,
    type=click.Choice([*TRAFFIC_PARTS, "nothing"]),
    default=["hour"],
    help="One line for each value of this; repeatable; default: hour. `nothing`: one line.",
)
@lake_job
async def traffic(asked: AskedLake, by: tuple[str, ...]) -> JobResult[TrafficLine]:
    """Who sent how much where: recipients that were accepted, delivered, deferred, rejected and
    removed, attempts, bytes, and the time to delivery."""
    from postroad.pipeline.spark.jobs.traffic import traffic as find
    from postroad.pipeline.spark.lake.lake import in_thread

    coverage = await asked.coverage()
    lines = await in_thread(find, asked.lake.entries(), coverage.stretch, by)
    return JobResult("traffic", coverage, lines)


@click.command()
@lake_job
async def destinations(asked: AskedLake) -> JobResult[DestinationLine]:
    """Answers of each destination: rates, the commonest reasons, what was delivered on a retry, and
    anomalies beside the 7 days before."""
    from postroad.pipeline.spark.jobs.traffic import destinations as find
    from postroad.pipeline.spark.lake.lake import in_thread

    coverage = await asked.coverage()
    lines = await in_thread(find, asked.lake.entries(), coverage.stretch)
    anomalies = sum(bool(each.anomalies) for each in lines)
    return JobResult("destinations", coverage, lines, anomalies)


async def trace(asked: AskedLake, what: str) -> JobResult[TraceLine]:
    """History of a mail, by its mail id or one of its enqueue ids, or of all mails from or to an
    address: every entry of them, in the lake and in the view. Without --from, since the lake
    began."""
    from postroad.pipeline.spark.columns import column_of
    from postroad.pipeline.spark.jobs.tracing import selector_of, unarchived_entries
    from postroad.pipeline.spark.jobs.tracing import trace as find
    from postroad.pipeline.spark.lake.lake import in_thread

    settings, opened, others = asked.settings, asked.opened, None
    key = address_key(settings)
    wanted = selector_of(
        what, settings.pipeline.addresses, key, have_ids_moments=opened is not None
    )
    coverage = await asked.coverage(length=None)
    if opened is not None:
        tables, last = opened.view_tables(), asked.now + Timing().skew
        kept = column_of(settings.pipeline.addresses, key)
        others, coverage = await unarchived_entries(
            opened.session, asked.lake, tables, kept, coverage, last
        )
    lines = await in_thread(find, asked.lake.entries, others, coverage.stretch, wanted)
    return JobResult("trace", coverage, lines)


@click.command()
@lake_job
async def advise(asked: AskedLake) -> JobResult[AdviceLine]:
    """The sliceWindow, bucketCount and updateBrowseStartPace that suit the mail that the queue has
    had, with reasons. Nothing is applied. Without --from, since the lake began."""
    from postroad.pipeline.spark.lake.extent import slice_counts
    from postroad.pipeline.spark.lake.lake import in_thread

    queue = asked.with_tables("there is nothing to set for it").queue
    coverage = await asked.coverage(length=None)
    present = replay(queue.events)
    if present is None:
        raise HistoryMissing("the configuration history has no configuration")
    counts = await in_thread(slice_counts, asked.lake.slice_lines(), coverage.stretch)
    seen = await observe(queue.view)
    lines = sizing(present.configuration, counts, seen.hosts, seen.row_bytes)
    changed = sum(each.advised != each.present for each in lines)
    return JobResult("advise", coverage, lines, changed)


@click.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=Path))
@with_lake
def report(place: Path, request: LakeRequest) -> None:
    """Write a page into a directory: traffic, time to delivery, destinations, waiting mail by age,
    mails a slice. index.html has its pictures in itself; they lie beside it as PNGs too.

    The files of an earlier report are replaced."""
    if find_spec("matplotlib") is None:
        raise NotInstalled.lacking("matplotlib")
    _make(place)
    found = asyncio.run(_report(request))
    from postroad.pipeline.results.charts import draw

    pictures = draw(found)
    _write(place, {f"{name}.png": data for name, data in pictures.items()})
    _write(place, {PAGE: page(found, pictures).encode()})
    click.echo(f"wrote {place / PAGE}")


async def _report(request: LakeRequest) -> QueueReport:
    async with opened_lake(request) as lake:
        return await _answers(lake)


async def _answers(asked: AskedLake) -> QueueReport:
    from postroad.pipeline.spark.jobs.traffic import destinations, traffic
    from postroad.pipeline.spark.jobs.waiting import count_ages
    from postroad.pipeline.spark.lake.extent import slice_counts
    from postroad.pipeline.spark.lake.lake import in_thread

    coverage = await asked.coverage()
    entries, stretch, opened = asked.lake.entries(), coverage.stretch, asked.opened
    total = await in_thread(traffic, entries, stretch, ())
    ages, slices = None, None
    if opened is not None:
        last = asked.now + Timing().skew
        ages = await count_ages(opened.session, opened.view_tables(), asked.now, last)
        slices = await in_thread(slice_counts, asked.lake.slice_lines(), stretch)
    return QueueReport(
        queue=asked.name,
        made_at=asked.now,
        coverage=coverage,
        total=next((each for each in total if each.attempts or each.accepted), None),
        hours=await in_thread(traffic, entries, stretch, ("hour",)),
        destinations=await in_thread(destinations, entries, stretch),
        ages=ages,
        slices=slices,
    )


def _make(folder: Path) -> None:
    """Make the directory, before Spark takes its time. Raises: InvalidInput."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder}: {error.strerror}: name a directory") from error


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Raises: InvalidInput."""
    for name, data in files.items():
        new = folder / f".{name}.new"
        try:
            new.write_bytes(data)
            new.replace(folder / name)
        except OSError as error:
            raise InvalidInput(f"{folder / name}: {error.strerror}") from error
