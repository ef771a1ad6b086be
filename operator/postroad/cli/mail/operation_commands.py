"""Commands that change what waits: one for each `Operation`, and `purge republish`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

from postroad.cli.options import (
    DURATION,
    by_spark,
    json_option,
    on_purpose,
    say_count,
    selecting,
    with_queue,
)
from postroad.distributed.administration.found_entries import EntryChange
from postroad.domain.queues.selection import Selector
from postroad.ports.administration import Operation
from postroad.ports.mail_queue import MailQueue


def change_by_spark(change: EntryChange, verb: str) -> Callable[..., None]:
    """Return what a command of this operation does with --spark."""

    def run(*, url: str, master: str, selector: Selector, as_json: bool) -> None:
        from postroad.cli.pipeline.servers import change as change_entries

        counted = change_entries(url, change, on_purpose(selector), master)
        asyncio.run(say_count(counted, as_json=as_json, verb=verb))

    return run


def changing(operation: Operation) -> click.Command:
    """Return the command of an operation."""

    @with_queue
    @selecting
    @json_option
    async def change(queue: MailQueue, selector: Selector, as_json: bool) -> None:
        counted = queue.change(operation, on_purpose(selector))
        await say_count(counted, as_json=as_json, verb=operation.past)

    if operation.value in {*EntryChange}:
        job = change_by_spark(EntryChange(operation.value), operation.past)
        change = by_spark(selecting(job))(change)
    return click.command(operation.value, help=operation.text)(change)


@click.command()
@with_queue
@json_option
async def purge(queue: MailQueue, as_json: bool) -> None:
    """Remove every mail that waits now, for ever. Dead letters are not touched."""
    await say_count(queue.purge(), as_json=as_json, verb="removed")


def _republish_by_spark(*, older_than: timedelta, **options: Any) -> None:
    republish = change_by_spark(EntryChange.REPUBLISH, "republished")
    republish(selector=Selector(older_than=older_than), **options)


@click.command()
@by_spark(_republish_by_spark)
@with_queue
@click.option(
    "--older-than",
    type=DURATION,
    required=True,
    help="Due for longer than this, e.g. 1h; with --spark accepted so long ago, due or not.",
)
@json_option
async def republish(queue: MailQueue, older_than: timedelta, as_json: bool) -> None:
    """Give back to the broker what it may have lost. Held mail is left out."""
    await say_count(queue.republish(older_than), as_json=as_json, verb="republished")
