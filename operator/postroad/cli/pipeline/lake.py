"""A queue's lake, open for one job, and how its result is printed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from postroad.adapters.clocks import MachineClock
from postroad.bootstrap.archiving import check_lake, name_of
from postroad.cli.options import (
    INSTANT,
    Command,
    json_option,
    lake_option,
    master_option,
    queue_option,
)
from postroad.cli.pipeline import spark
from postroad.delivery_settings.lake_catalog import read_catalog
from postroad.domain.values.instants import rfc3339
from postroad.domain.values.text import escaped, json_line
from postroad.errors import InvalidInput, InvalidQueueURL
from postroad.pipeline.archive.planning import Coverage, Stretch
from postroad.pipeline.results.lines import JobResult
from postroad.settings import Settings, from_environment

if TYPE_CHECKING:
    from postroad.pipeline.spark.lake.lake import LakeTables

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class AskedLake:
    """The lake that a job answers from. `opened`: its queue, None of one in a directory; `name`:
    what the queue is called; `asked`: the stretch as the options name it, where either end may be
    open."""

    settings: Settings
    opened: spark.QueueWithSpark | None
    name: str
    lake: LakeTables
    asked: tuple[datetime | None, datetime | None]
    now: datetime

    async def coverage(self, length: timedelta | None = DAY) -> Coverage:
        """Return the stretch that is asked about: until now, and of this length or from the lake's
        first slice on, unless options name its ends; and how far the lake covers it. Raises:
        InvalidInput for one that ends before it begins, ViewError, JobFailed."""
        from postroad.pipeline.spark.lake.extent import extent_of
        from postroad.pipeline.spark.lake.lake import in_thread

        extent = await in_thread(extent_of, self.lake)
        before = self.asked[1] or self.now
        begin = before - length if length is not None else min(extent.first or before, before)
        first = self.asked[0] or begin
        if before < first:
            raise InvalidInput(f"--to ({rfc3339(before)}) lies before --from ({rfc3339(first)})")
        archived = None
        if self.opened is not None:
            archived = (await self.opened.queue.view.limits()).archived_through
        return extent.coverage(Stretch(first, before), archived)

    def with_tables(self, instead: str) -> spark.QueueWithSpark:
        """Return the queue, which has tables. Raises: InvalidQueueURL of one in a directory, with
        what serves that."""
        if self.opened is None:
            raise InvalidQueueURL(f"the queue in {self.name} has no slices: {instead}")
        return self.opened


@dataclass(frozen=True, slots=True)
class LakeRequest:
    """A queue's lake, and the stretch of it that is asked about. `folder`: its directory, of a
    queue in one; `master`: Spark's."""

    url: str
    folder: Path | None
    master: str
    first: datetime | None = None
    before: datetime | None = None


def with_lake(command: Command) -> Command:
    """Add the options of a LakeRequest; the command gets it as `request`."""

    @queue_option
    @click.option(
        "--from",
        "first",
        type=INSTANT,
        help="From then on; default, where none stands above: a day before --to.",
    )
    @click.option("--to", "before", type=INSTANT, help="Before then; default: until now.")
    @lake_option
    @master_option
    @wraps(command)
    def run(
        *,
        url: str,
        folder: Path | None,
        master: str,
        first: datetime | None,
        before: datetime | None,
        **options: Any,
    ) -> Any:
        return command(request=LakeRequest(url, folder, master, first, before), **options)

    return run


LakeJob = Callable[..., Coroutine[Any, Any, JobResult[Any]]]


def lake_job(job: LakeJob) -> Command:
    """Run a job over a lake, passed as `asked`, and print its result."""

    @with_lake
    @json_option
    @wraps(job)
    def run(request: LakeRequest, *, as_json: bool, **options: Any) -> None:
        print_result(request, partial(job, **options), as_json=as_json)

    return run


def print_result(request: LakeRequest, job: LakeJob, *, as_json: bool) -> None:
    async def run() -> JobResult[Any]:
        async with opened_lake(request) as asked:
            found = await job(asked=asked)
            summarize(asked.settings, found)
            return found

    say_result(asyncio.run(run()), as_json=as_json)


@asynccontextmanager
async def opened_lake(request: LakeRequest) -> AsyncIterator[AskedLake]:
    """Open a lake, with Spark. Raises: NotInstalled, InvalidQueueURL, InvalidInput, QueueNotFound,
    LakeNotFound, LakeTooNew, JobFailed, ServerError."""
    url, asked, settings = request.url, (request.first, request.before), from_environment()
    catalog = read_catalog(settings.pipeline.catalog)
    local = spark.lake_directory(url, request.folder)
    now = MachineClock().now()
    if local is None:
        async with spark.open_with_spark(url, request.master, brief=True) as opened:
            from postroad.pipeline.spark.lake.lake import in_thread, open_lake

            place = spark.place_of(opened.queue, catalog)
            lake = await in_thread(open_lake, opened.session, place)
            yield AskedLake(settings, opened, str(opened.queue.name), lake, asked, now)
        return
    name = name_of(url)
    check_lake(local, name)
    async with spark.open_spark(settings, request.master, brief=True) as session:
        from postroad.pipeline.spark.lake.lake import in_thread
        from postroad.pipeline.spark.lake.store_lake import open_store_lake

        lake = await in_thread(open_store_lake, session, local, catalog)
        yield AskedLake(settings, None, name, lake, asked, now)


def summarize(settings: Settings, result: JobResult[Any]) -> None:
    """Write the summary of a result. Raises: OSError."""
    counts = {"lines": len(result.lines)}
    spark.write_summary(settings.pipeline.summary_file, counts, findings=result.findings)


def say_result(result: JobResult[Any], *, as_json: bool) -> None:
    """Print a result: JSON lines, or a table below what it is about, with what it lacks last."""
    if as_json:
        for document in result.documents():
            click.echo(json_line(document))
        return
    first, before = map(rfc3339, result.coverage.stretch)
    parts = (
        f"{result.job} from {first} until {before}",
        result.text() or "nothing",
        *(f"note: {each}" for each in result.coverage.sentences()),
    )
    click.echo(escaped("\n".join(parts)))
