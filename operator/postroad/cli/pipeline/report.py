"""`postroad pipeline report`: a page about a queue, from the answers of several jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

import click

from postroad.cli.options import queue_option
from postroad.cli.pipeline.audit import audited
from postroad.cli.pipeline.lake import AskedLake, opened_lake
from postroad.cli.pipeline.options import INSTANT, lake_option, master_option
from postroad.distributed.engine.timing import Timing
from postroad.errors import InvalidInput, NotInstalled
from postroad.pipeline.answers.findings import FindingSummary, summaries
from postroad.pipeline.answers.report import PAGE, QueueReport, page


@click.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=Path))
@queue_option
@click.option("--from", "first", type=INSTANT, help="From then on; default: a day before --to.")
@click.option("--to", "before", type=INSTANT, help="Before then; default: until now.")
@click.option("--audit", "audits", is_flag=True, help="Audit the queue too, and show the findings.")
@lake_option
@master_option
def report(
    place: Path,
    url: str,
    first: datetime | None,
    before: datetime | None,
    audits: bool,
    folder: Path | None,
    master: str,
) -> None:
    """Write a page into a directory: traffic, time to delivery, destinations, waiting mail by age,
    mails a slice, findings. index.html has its pictures in itself; they lie beside it as PNGs too.

    The files of an earlier report are replaced.
    """
    if find_spec("matplotlib") is None:
        raise NotInstalled(
            "matplotlib is missing", hint="install postroad with the extra `pipeline`"
        )
    _make(place)
    found = asyncio.run(_report((url, folder, master), (first, before), audits))
    from postroad.pipeline.answers.charts import draw

    pictures = draw(found)
    _write(place, {f"{name}.png": data for name, data in pictures.items()})
    _write(place, {PAGE: page(found, pictures).encode()})
    click.echo(f"wrote {place / PAGE}")


async def _report(
    of: tuple[str, Path | None, str],
    asked: tuple[datetime | None, datetime | None],
    audits: bool,
) -> QueueReport:
    async with opened_lake(*of, asked) as lake:
        findings = await _findings(of[0], lake) if audits else None
        return await _answers(lake, findings)


async def _findings(url: str, lake: AskedLake) -> tuple[FindingSummary, ...]:
    opened = lake.with_tables("leave --audit away, and use `postroad verify DIR`")
    found, repaired = await audited(opened, url, repairs=False)
    return summaries(found.findings, repaired)


async def _answers(asked: AskedLake, findings: tuple[FindingSummary, ...] | None) -> QueueReport:
    from postroad.pipeline.spark.jobs.destinations import destinations
    from postroad.pipeline.spark.jobs.traffic import traffic
    from postroad.pipeline.spark.jobs.waiting import count_ages
    from postroad.pipeline.spark.lake.claimed_lake import in_thread
    from postroad.pipeline.spark.lake.slice_counts import slice_counts

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
        findings=findings,
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
