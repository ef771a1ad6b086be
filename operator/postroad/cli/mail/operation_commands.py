"""Commands that change what waits: one for each `Operation`, and `purge republish`."""

from __future__ import annotations

from datetime import timedelta

import click

from postroad.cli.options import (
    DURATION,
    json_option,
    on_purpose,
    say_count,
    selecting,
    with_queue,
)
from postroad.domain.queues.selection import Selector
from postroad.ports.administration import Operation
from postroad.ports.mail_queue import MailQueue


def changing(operation: Operation) -> click.Command:
    """Return the command of an operation."""

    @click.command(operation.value, help=operation.text)
    @with_queue
    @selecting
    @json_option
    async def change(queue: MailQueue, selector: Selector, as_json: bool) -> None:
        counted = queue.change(operation, on_purpose(selector))
        await say_count(counted, as_json=as_json, verb=operation.past)

    return change


@click.command()
@with_queue
@json_option
async def purge(queue: MailQueue, as_json: bool) -> None:
    """Remove every mail that waits now, for ever. Dead letters are not touched."""
    await say_count(queue.purge(), as_json=as_json, verb="removed")


@click.command()
@with_queue
@click.option(
    "--older-than", type=DURATION, required=True, help="Due for longer than this, e.g. 1h."
)
@json_option
async def republish(queue: MailQueue, older_than: timedelta, as_json: bool) -> None:
    """Give back to the broker what it may have lost."""
    await say_count(queue.republish(older_than), as_json=as_json, verb="republished")
