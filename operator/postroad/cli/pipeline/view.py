"""`postroad pipeline ages` and `apply`: the view of a queue that is too large for one process."""

from __future__ import annotations

import asyncio
from functools import partial

import click

from postroad.adapters.machine.clocks import MachineClock
from postroad.bootstrap.archiving import change_entries
from postroad.cli.options import json_option, on_purpose, queue_option, say, selecting
from postroad.cli.pipeline.lake import say_answer, summarize
from postroad.cli.pipeline.options import master_option, open_with_spark
from postroad.distributed.administration.found_entries import EntryChange
from postroad.distributed.engine.timing import Timing
from postroad.domain.queues.selection import Selector
from postroad.pipeline.answers.lines import AgesLine, JobAnswer
from postroad.pipeline.archive.coverage import Coverage, Stretch

OPERATIONS = [each.value for each in EntryChange if each is not EntryChange.GIVE_UP_WITHOUT_BYTES]


@click.command()
@queue_option
@master_option
@json_option
def ages(url: str, master: str, as_json: bool) -> None:
    """Count waiting mails by destination domain and age, as `postroad ages` does, of a queue that
    is too large for one process."""
    say_answer(asyncio.run(_ages(url, master)), as_json=as_json)


async def _ages(url: str, master: str) -> JobAnswer[AgesLine]:
    from postroad.pipeline.spark.jobs.waiting import count_ages

    async with open_with_spark(url, master, "use `postroad ages`") as opened:
        now, tables = MachineClock().now(), opened.view_tables()
        lines = await count_ages(opened.session, tables, now, now + Timing().skew)
        answer = JobAnswer("ages", Coverage(Stretch(now, now)), lines)
        summarize(opened.settings, answer)
    return answer


@click.command()
@click.argument("operation", type=click.Choice(OPERATIONS))
@queue_option
@selecting
@master_option
@json_option
def apply(operation: str, url: str, selector: Selector, master: str, as_json: bool) -> None:
    """Change the selected mails that wait, by the thousands: Spark finds them, and its processes
    open the queue and change those of one partition each. A run may be stopped and repeated.

    `republish` gives mails that are not held another message, whether they are due or not.
    """
    on_purpose(selector)
    count = asyncio.run(_apply(url, EntryChange(operation), selector, master))
    text = f"{operation}: {count} mail{'' if count == 1 else 's'}"
    say({"operation": operation, "count": count}, as_json=as_json, text=text)


async def _apply(url: str, change: EntryChange, selector: Selector, master: str) -> int:
    from postroad.pipeline.spark.jobs.waiting import change_selected

    async with open_with_spark(url, master, _instead(change)) as opened:
        now, tables = MachineClock().now(), opened.view_tables()
        changer = partial(change_entries, url, change, selector)
        last = now + Timing().skew
        return await change_selected(opened.session, tables, selector, changer, now, last)


def _instead(change: EntryChange) -> str:
    if change is EntryChange.REPUBLISH:
        return "there is no message of it to be lost"
    return f"use `postroad {change.value}`"
