"""`postroad top`: queues and how they change, as a table that is renewed."""

import asyncio
from datetime import timedelta

import click

from postroad.bootstrap import open_queue
from postroad.cli.options import DURATION, json_option, no_tracebacks, queues_option
from postroad.cli.tables import Rates, watch
from postroad.domain.queues.documents import Sizes, sizes_value
from postroad.domain.values.text import json_line

HEAD = ("QUEUE", "WAITING", "DELAYED", "HELD", "DEAD", "CHANGE/S")


@click.command()
@queues_option
@click.option("--every", type=DURATION, default="2s", show_default=True, help="The interval.")
@click.option("--once", is_flag=True, help="Print one table, and end, as without a terminal.")
@json_option
def top(urls: tuple[str, ...], every: timedelta, once: bool, as_json: bool) -> None:
    """Show how many mails wait, until it is interrupted. The change is that of waiting mail.

    With --json, a line for each queue, once."""
    no_tracebacks()
    if as_json:
        for url in urls:
            click.echo(json_line({"queue": url, **sizes_value(asyncio.run(_sizes(url)))}))
        return
    rates = Rates()
    watch(HEAD, lambda: [asyncio.run(_row(url, rates)) for url in urls], every, once=once)


async def _sizes(url: str) -> Sizes:
    async with open_queue(url) as queue:
        return await queue.size()


async def _row(url: str, rates: Rates) -> tuple[str, ...]:
    sizes = await _sizes(url)
    dead = "?" if sizes.dead_letters is None else str(sizes.dead_letters)
    counts = (f"{'>' if sizes.at_least else ''}{sizes.size}", str(sizes.delayed), str(sizes.held))
    return (url, *counts, dead, rates.note(url, sizes.size))
