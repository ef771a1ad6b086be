"""`postroad top`: queues and how they change, as a table that is renewed."""

import asyncio
from datetime import timedelta

import click

from postroad.bootstrap import open_queue
from postroad.cli.options import DURATION, no_tracebacks, queues_option
from postroad.cli.tables import Rates, watch

HEAD = ("QUEUE", "WAITING", "DELAYED", "HELD", "DEAD", "CHANGE/S")


@click.command()
@queues_option
@click.option("--every", type=DURATION, default="2s", show_default=True, help="The interval.")
@click.option("--once", is_flag=True, help="Print one table, and end, as without a terminal.")
def top(urls: tuple[str, ...], every: timedelta, once: bool) -> None:
    """Show how many mails wait, until it is interrupted. The change is that of waiting mail."""
    no_tracebacks()
    rates = Rates()
    watch(HEAD, lambda: [asyncio.run(_row(url, rates)) for url in urls], every, once=once)


async def _row(url: str, rates: Rates) -> tuple[str, ...]:
    async with open_queue(url) as queue:
        sizes = await queue.size()
    dead = "?" if sizes.dead_letters is None else str(sizes.dead_letters)
    counts = (f"{'>' if sizes.at_least else ''}{sizes.size}", str(sizes.delayed), str(sizes.held))
    return (url, *counts, dead, rates.note(url, sizes.size))
