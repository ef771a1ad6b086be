"""`postroad pipeline traffic`, `destinations`, `trace`, `advise`: what a queue's lake answers."""

from __future__ import annotations

import click

from postroad.cli.pipeline.lake import AskedLake, lake_job
from postroad.cli.pipeline.options import address_key
from postroad.configuration.evidence import observe
from postroad.distributed.engine.timing import Timing
from postroad.domain.configuration.history import replay
from postroad.errors import HistoryMissing
from postroad.pipeline.answers.lines import (
    TRAFFIC_PARTS,
    DestinationLine,
    JobAnswer,
    TraceLine,
    TrafficLine,
)
from postroad.pipeline.answers.sizing import AdviceLine, sizing


@click.command()
@click.option(
    "--by",
    multiple=True,
    type=click.Choice([*TRAFFIC_PARTS, "nothing"]),
    help="One line for each value of this; repeatable; default: by all. `nothing`: one line.",
)
@lake_job
async def traffic(asked: AskedLake, by: tuple[str, ...]) -> JobAnswer[TrafficLine]:
    """Who sent how much where: recipients that were accepted, delivered, deferred, rejected and
    removed, attempts, bytes, and the time to delivery."""
    from postroad.pipeline.spark.jobs.traffic import traffic as find
    from postroad.pipeline.spark.lake.claimed_lake import in_thread

    coverage = await asked.coverage()
    parts = by or TRAFFIC_PARTS
    lines = await in_thread(find, asked.lake.entries(), coverage.stretch, parts)
    return JobAnswer("traffic", coverage, lines)


@click.command()
@lake_job
async def destinations(asked: AskedLake) -> JobAnswer[DestinationLine]:
    """How each destination answers: rates, the commonest reasons, what was delivered on a retry,
    and what is out of line with the 7 days before."""
    from postroad.pipeline.spark.jobs.destinations import destinations as find
    from postroad.pipeline.spark.lake.claimed_lake import in_thread

    coverage = await asked.coverage()
    lines = await in_thread(find, asked.lake.entries(), coverage.stretch)
    out_of_line = sum(bool(each.out_of_line) for each in lines)
    return JobAnswer("destinations", coverage, lines, out_of_line)


@click.command()
@click.argument("what", metavar="ADDRESS|ID")
@lake_job
async def trace(asked: AskedLake, what: str) -> JobAnswer[TraceLine]:
    """What became of a mail, by its mail id or one of its enqueue ids, or of all mails from or to
    an address: every entry of them, in the lake and in the view. Without --from, since the lake
    began."""
    from postroad.pipeline.spark.address_columns import column_of
    from postroad.pipeline.spark.jobs.tracing import selector_of
    from postroad.pipeline.spark.jobs.tracing import trace as find
    from postroad.pipeline.spark.jobs.view_entries import unarchived_entries
    from postroad.pipeline.spark.lake.claimed_lake import in_thread

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
    return JobAnswer("trace", coverage, lines)


@click.command()
@lake_job
async def advise(asked: AskedLake) -> JobAnswer[AdviceLine]:
    """The sliceWindow, bucketCount and updateBrowseStartPace that suit the mail that the queue has
    had, with reasons. Nothing is applied. Without --from, since the lake began."""
    from postroad.pipeline.spark.lake.claimed_lake import in_thread
    from postroad.pipeline.spark.lake.slice_counts import slice_counts

    queue = asked.with_tables("there is nothing to set for it").queue
    coverage = await asked.coverage(length=None)
    present = replay(queue.events)
    if present is None:
        raise HistoryMissing("the configuration history has no configuration")
    counts = await in_thread(slice_counts, asked.lake.slice_lines(), coverage.stretch)
    seen = await observe(queue.view)
    lines = sizing(present.configuration, counts, seen.hosts, seen.row_bytes)
    changed = sum(each.advised != each.present for each in lines)
    return JobAnswer("advise", coverage, lines, changed)
