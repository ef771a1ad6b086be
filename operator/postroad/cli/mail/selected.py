"""Commands that list, count, show and change what waits: `browse show size ages dead-letters`,
one for each `Operation`, and `purge republish`."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Collection
from datetime import timedelta
from typing import Any
from uuid import UUID

import click

from postroad.adapters.clocks import MachineClock
from postroad.cli.options import (
    DURATION,
    VIEW_HEAD,
    asking,
    by_spark,
    json_option,
    on_purpose,
    say,
    say_count,
    selecting,
    view_cells,
    with_queue,
)
from postroad.cli.tables import TextTable
from postroad.distributed.administration.administration import EntryChange
from postroad.domain.queues.documents import MailView, ages_value, printed_view, sizes_value
from postroad.domain.queues.selection import Selector
from postroad.ports.mail_queue import MailQueue, Operation

WATCH_INTERVAL = timedelta(seconds=2)
"""Interval at which `browse --watch` looks for mails that came."""

limit_option = click.option("--limit", type=click.IntRange(min=1), help="At most so many mails.")


@click.command()
@with_queue
@selecting
@limit_option
@click.option("--watch", type=DURATION, help="For so long, also list mails as they come.")
@json_option
async def browse(
    queue: MailQueue,
    selector: Selector,
    limit: int | None,
    watch: timedelta | None,
    as_json: bool,
) -> None:
    """List waiting mails, oldest first: delayed, held and leased ones too."""
    if watch is not None and limit is not None:
        raise click.UsageError("--limit cannot be combined with --watch")
    clock = MachineClock()
    ends = clock.elapsed() + (watch or timedelta(0))
    table = TextTable(*VIEW_HEAD, as_json=as_json)
    listed = await _list(queue.browse, selector, limit, table)
    while clock.elapsed() < ends:
        await clock.sleep(WATCH_INTERVAL)
        listed = await _list(queue.browse, selector, limit, table, listed)


@click.command("dead-letters")
@with_queue
@selecting
@limit_option
@json_option
async def dead_letters(
    queue: MailQueue, selector: Selector, limit: int | None, as_json: bool
) -> None:
    """List rejected and unreadable mail with the reasons, oldest first."""
    await _list(queue.dead_letters, selector, limit, TextTable(*VIEW_HEAD, as_json=as_json))


@click.command()
@with_queue
@click.argument("enqueue_id", type=click.UUID)
@json_option
async def show(queue: MailQueue, enqueue_id: UUID, as_json: bool) -> None:
    """Show one mail, waiting or dead, by its ENQUEUE_ID."""
    selector = Selector(enqueue_id=enqueue_id)
    for views in (queue.browse(selector), queue.dead_letters(selector)):
        async for view in views:
            values = printed_view(view)
            text = "\n".join(f"{field:12} {_plain(value)}" for field, value in values.items())
            return say(values, as_json=as_json, text=text)
    click.echo("postroad: no mail waits under this id", err=True)
    sys.exit(1)


@click.command()
@with_queue
@json_option
async def size(queue: MailQueue, as_json: bool) -> None:
    """Count the mails that wait."""
    sizes = await queue.size()
    text = (
        f"{'at least ' if sizes.at_least else ''}{sizes.size} waiting "
        f"({sizes.delayed} delayed, {sizes.held} held), "
        f"{'unknown' if sizes.dead_letters is None else sizes.dead_letters} dead letters"
    )
    say(sizes_value(sizes), as_json=as_json, text=text)


def _ages_by_spark(**options: Any) -> None:
    from postroad.cli.pipeline.live_queue import ages

    ages(**options)


@click.command()
@by_spark(_ages_by_spark)
@with_queue
@json_option
async def ages(queue: MailQueue, as_json: bool) -> None:
    """Count waiting mails by destination domain and age."""
    rows = ages_value(await queue.ages())
    limits = rows[0]["ages"] if rows else ()
    with TextTable("DOMAIN", "TOTAL", *limits, as_json=as_json) as table:
        for row in rows:
            table.add(row, row["domain"], str(row["total"]), *map(str, row["ages"].values()))


async def _list(
    views: Callable[[Selector], AsyncIterator[MailView]],
    selector: Selector,
    limit: int | None,
    table: TextTable,
    listed: Collection[UUID] = (),
) -> Collection[UUID]:
    """Print the mails that are not listed yet; return the ids of all."""
    wanted = Selector.all() if selector.is_empty else selector
    found = set[UUID]()
    async for view in views(wanted):
        found.add(view.enqueue_id)
        if view.enqueue_id not in listed:
            table.add(printed_view(view), *view_cells(view))
        if len(found) == limit:
            break
    table.show()
    return found


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    return "-" if value is None else str(value)


def change_by_spark(change: EntryChange, verb: str) -> Callable[..., None]:
    def run(*, url: str, master: str, selector: Selector, as_json: bool) -> None:
        from postroad.cli.pipeline.live_queue import change as change_entries

        counted = change_entries(url, change, on_purpose(selector), master)
        asyncio.run(say_count(counted, as_json=as_json, verb=verb))

    return run


DESTRUCTIVE = (Operation.REMOVE, Operation.EXPIRE, Operation.DISCARD)
"""Operations that cannot be taken back."""


def _counter(*, of_dead_letters: bool) -> Callable[..., int]:
    """Return a function that counts the mails which the options of a command select."""

    @with_queue
    @selecting
    async def count(queue: MailQueue, selector: Selector, **_: Any) -> int:
        views = queue.dead_letters if of_dead_letters else queue.browse
        return sum([1 async for _ in views(on_purpose(selector))])

    return count


@with_queue
async def _count_all(queue: MailQueue, **_: Any) -> int:
    return (await queue.size()).size


def changing(operation: Operation) -> click.Command:
    @with_queue
    @selecting
    @json_option
    async def change(queue: MailQueue, selector: Selector, as_json: bool) -> None:
        counted = queue.change(operation, on_purpose(selector))
        await say_count(counted, as_json=as_json, verb=operation.past)

    if operation.value in {*EntryChange}:
        job = change_by_spark(EntryChange(operation.value), operation.past)
        change = by_spark(selecting(job))(change)
    if operation in DESTRUCTIVE:
        change = asking(operation.value, _counter(of_dead_letters=operation.of_dead_letters))(
            change
        )
    return click.command(operation.value, help=operation.text)(change)


@click.command()
@asking("remove", _count_all)
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
