"""`postroad migrate james`: moves what waits in a James queue into a queue of postroad."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from postroad.adapters.cassandra.session import Session
from postroad.adapters.rabbitmq.transfers import Transfers
from postroad.bootstrap import open_queue
from postroad.cli.options import james_option, json_option, say
from postroad.domain.values.instants import format_duration, rfc3339
from postroad.james import blobs, tables
from postroad.james.blobs import JamesBlobs
from postroad.james.migration import LANES, Migration, MigrationCounts, SliceTotals
from postroad.james.properties import Configuration
from postroad.james.tables import JamesTables
from postroad.telemetry import logs

REPORTED_EVERY = 5.0
"""Seconds between two lines of progress."""

TEXTS = {
    "dropped": "messages of mails that had ended at James were dropped",
    "of_james": "mails are under way at James, who consumes the queue",
    "came_meanwhile": "mails came meanwhile: run it again",
    "failed": "mails could not be moved and stay at James",
    "hidden": "rows that James never delivers stay: see --hidden",
}


@click.group()
def migrate() -> None:
    """Move the mail of another system's queue into a queue of postroad."""


@migrate.command()
@click.argument("name")
@james_option
@click.option(
    "--queue", "url", metavar="URL", envvar="POSTROAD_QUEUE", help="Where to (or POSTROAD_QUEUE)."
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Count mails and octets by slice.")
@click.option("--leave", is_flag=True, help="Copy, and change nothing at James.")
@click.option("--hidden", "with_hidden", is_flag=True, help="Rows too that James never delivers.")
@json_option
def james(
    name: str,
    conf: Path,
    url: str | None,
    is_dry: bool,
    leave: bool,
    with_hidden: bool,
    as_json: bool,
) -> None:
    """Move what waits in the James queue NAME, such as spool or outgoing.

    It may be stopped and run again at any moment, also while James runs: each mail ends at one
    side. Exits with 1 when mails stay, which it lists with the reason."""
    if url is None and not is_dry:
        raise click.UsageError("give --queue (or POSTROAD_QUEUE)")
    if not logging.getLogger().handlers:
        logs.configure("WARNING")

    async def run() -> bool:
        configuration = Configuration(conf)
        place = configuration.blobs()
        async with AsyncExitStack() as stack:
            session = Session(configuration.cassandra())
            stack.push_async_callback(session.close)
            of_james = JamesTables(session, name)
            needed = (tables.ROWS, tables.MARKS, tables.BROWSE_START, tables.EVENTS)
            await of_james.check(*needed, *(() if place.s3 else (blobs.BLOBS, blobs.PARTS)))
            lanes = 0 if is_dry or leave else LANES
            transfers = [Transfers(configuration.rabbitmq()) for _ in range(lanes)]
            for each in transfers:
                stack.push_async_callback(each.close)
            queue = None if is_dry else await stack.enter_async_context(open_queue(str(url)))
            stored = JamesBlobs(place, session)
            migration = Migration(name, of_james, stored, transfers, queue, ProgressLine().say)
            if is_dry:
                say_survey(await migration.survey(), as_json=as_json)
            elif leave:
                await migration.copy(with_hidden=with_hidden)
            else:
                await migration.move(with_hidden=with_hidden)
            return say_tally(migration.tally, is_dry=is_dry, as_json=as_json)

    if asyncio.run(run()):
        sys.exit(1)


class ProgressLine:
    """Prints how far a migration is, on standard error."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def say(self, tally: MigrationCounts, remaining: int) -> None:
        now = time.monotonic()
        if now - self._last < REPORTED_EVERY:
            return
        self._last = now
        rate = (tally.moved + tally.dropped) / (now - self._began)
        left = timedelta(seconds=round(remaining / rate)) if rate else None
        about = f", about {format_duration(left)} left" if left else ""
        click.echo(
            f"{tally.moved:,} mails moved, {remaining:,} to go, {rate:,.0f} a second{about}",
            err=True,
        )


def say_survey(found: Mapping[datetime, SliceTotals], *, as_json: bool) -> None:
    for start, totals in found.items():
        document: dict[str, Any] = {"slice": rfc3339(start), **asdict(totals)}
        text = f"{rfc3339(start)}  {totals.mails:,} mails  {totals.octets:,} B"
        text += f"  {totals.hidden:,} hidden" if totals.hidden else ""
        say(document, as_json=as_json, text=text)
    if not as_json:
        mails = sum(each.mails for each in found.values())
        octets = sum(each.octets for each in found.values())
        say(None, as_json=False, text=f"{mails:,} mails wait, {octets:,} B")


def say_tally(tally: MigrationCounts, *, is_dry: bool, as_json: bool) -> bool:
    """Print what was done and what stays; return whether mails stay that this run should have
    moved."""
    for outcome, mails in (("failed", tally.failed), ("hidden", tally.hidden)):
        for enqueue_id, reason in mails.items():
            document = {"enqueue_id": enqueue_id, "outcome": outcome, "reason": reason}
            say(document, as_json=as_json, text=f"{outcome}  {enqueue_id}  {reason}")
    counts = {
        "moved": tally.moved,
        "octets": tally.octets,
        "dropped": tally.dropped,
        "of_james": tally.his,
        "came_meanwhile": tally.came,
        "failed": len(tally.failed),
        "hidden": len(tally.hidden),
    }
    lines = [f"{counts[each]:,} {text}" for each, text in TEXTS.items() if counts[each]]
    text = "\n".join([f"moved {tally.moved:,} mails, {tally.octets:,} B", *lines])
    if not is_dry:
        say(counts, as_json=as_json, text=text)
    return bool(tally.failed or tally.hidden)
