"""Commands that change what waits: `remove purge flush hold release requeue discard republish`."""

from __future__ import annotations

from datetime import timedelta

import click

from postroad.cli.queue_options import (
    DURATION,
    json_option,
    on_purpose,
    say_count,
    selecting,
    with_queue,
)
from postroad.domain.selection import Selector
from postroad.ports.mail_queue import MailQueue


@click.command()
@with_queue
@selecting
@json_option
async def remove(queue: MailQueue, selector: Selector, as_json: bool) -> None:
    """Remove the selected mails for ever. Dead letters are not touched."""
    await say_count(queue.remove(on_purpose(selector)), as_json=as_json, verb="removed")


@click.command()
@with_queue
@json_option
async def purge(queue: MailQueue, as_json: bool) -> None:
    """Remove every mail that waits now, for ever. Dead letters are not touched."""
    await say_count(queue.purge(), as_json=as_json, verb="removed")


@click.command()
@with_queue
@selecting
@json_option
async def flush(queue: MailQueue, selector: Selector, as_json: bool) -> None:
    """Make the selected delayed mails due now."""
    await say_count(queue.flush(on_purpose(selector)), as_json=as_json, verb="flushed")


@click.command()
@with_queue
@selecting
@json_option
async def hold(queue: MailQueue, selector: Selector, as_json: bool) -> None:
    """Keep the selected mails back until they are released."""
    await say_count(queue.hold(on_purpose(selector)), as_json=as_json, verb="held")


@click.command()
@with_queue
@selecting
@json_option
async def release(queue: MailQueue, selector: Selector, as_json: bool) -> None:
    """Let the selected held mails go on."""
    await say_count(queue.release(on_purpose(selector)), as_json=as_json, verb="released")


@click.command()
@with_queue
@selecting
@json_option
async def requeue(queue: MailQueue, selector: Selector, as_json: bool) -> None:
    """Give the selected dead letters a new entry."""
    await say_count(queue.requeue(on_purpose(selector)), as_json=as_json, verb="requeued")


@click.command()
@with_queue
@selecting
@json_option
async def discard(queue: MailQueue, selector: Selector, as_json: bool) -> None:
    """End the selected dead letters for ever; their bytes are deleted."""
    await say_count(queue.discard(on_purpose(selector)), as_json=as_json, verb="discarded")


@click.command()
@with_queue
@click.option(
    "--older-than", type=DURATION, required=True, help="Due for longer than this, e.g. 1h."
)
@json_option
async def republish(queue: MailQueue, older_than: timedelta, as_json: bool) -> None:
    """Give back to the broker what it may have lost."""
    await say_count(queue.republish(older_than), as_json=as_json, verb="republished")
