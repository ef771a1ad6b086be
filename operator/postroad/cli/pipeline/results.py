"""`postroad pipeline traffic`, `destinations`, `trace`, `advise`: results from a lake."""

import click

from postroad.cli.pipeline.lake import AskedLake, lake_job
from postroad.cli.pipeline.spark import address_key
from postroad.configuration import observe
from postroad.distributed.engine.timing import Timing
from postroad.domain.configuration.history import replay
from postroad.errors import HistoryMissing
from postroad.pipeline.results.lines import (
    TRAFFIC_PARTS,
    AdviceLine,
    DestinationLine,
    JobResult,
    TraceLine,
    TrafficLine,
    sizing,
)


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
