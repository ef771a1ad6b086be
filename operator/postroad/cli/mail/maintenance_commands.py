"""`postroad maintain`: runs maintenance once or in a loop. `postroad audit`: compares all bytes in
S3 with mails."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import click

from postroad.cli.options import DURATION, INSTANT, by_spark, json_option, say, with_queue
from postroad.domain.values.instants import rfc3339
from postroad.errors import PostroadError
from postroad.ports.mail_queue import MailQueue
from postroad.telemetry.logs import logger


@click.command()
@with_queue
@click.option("--every", type=DURATION, help="Repeat for ever, with this pause; default: once.")
@click.option(
    "--accept-loss",
    "lost",
    metavar="SLICE[/SLICE]",
    help="First accept as lost the rows that vanished from the slice that starts at this time, or"
    " from all slices between two times.",
)
async def maintain(queue: MailQueue, every: timedelta | None, lost: str | None) -> None:
    """Run maintenance: advance browse start, clean drained slices, refresh expiring rows, process
    the dead queue.

    Cleanup waits a lease after browse start moved, so it needs --every.
    """
    if lost is not None:
        await _accept_loss(queue, lost)
    if every is None:
        return await queue.maintain()
    while True:
        try:
            await queue.maintain()
        except PostroadError as error:
            if not error.transient:
                raise
            logger("maintain").warning("a round of maintenance failed", error=error.explain())
        await asyncio.sleep(every.total_seconds())


def _deep_audit(**options: Any) -> None:
    from postroad.cli.pipeline.servers import audit

    audit(**options)


@click.command()
@by_spark(
    _deep_audit,
    "--deep",
    "Compare, by Spark, objects, dead letters, rows, marks and messages: waiting mail without"
    " bytes, marks without rows, rows that vanished or do not belong, lost messages too"
    " (docs/lake.md). What was accepted less than an hour before is no finding.",
)
@with_queue
@click.option(
    "--repair",
    is_flag=True,
    help="Delete these objects; with --deep also make dead letters of mail without bytes, and give"
    " waiting mail new messages where some are lost. The rest is only named.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="First record this view as the owner of the bucket's bytes, after it was restored or its"
    " keyspace was created again, where no other installation uses the bucket.",
)
@json_option
async def audit(queue: MailQueue, repair: bool, adopt: bool, as_json: bool) -> None:
    """List the objects that no mail needs, oldest first.

    Maintenance finds and deletes them within hours. Objects younger than the longest upload
    (6 hours) are left out. Without --repair, nothing is written.
    """
    judge = getattr(queue, "audit", None)
    if judge is None:
        raise click.UsageError("a queue of this engine has no objects: use postroad verify DIR")
    count = 0
    async for each in judge(repair=repair, adopt=adopt):
        count += 1
        values = {
            "blob_key": each.blob_key,
            "accepted_at": rfc3339(each.accepted_at),
            "deleted": each.deleted,
        }
        verb = "deleted" if each.deleted else "orphaned"
        say(values, as_json=as_json, text=f"{verb}  {each.blob_key}")
    if not as_json:
        click.echo(f"{count} object{'' if count == 1 else 's'} without a mail")


async def _accept_loss(queue: MailQueue, lost: str) -> None:
    accept = getattr(queue, "accept_loss", None)
    if accept is None:
        raise click.UsageError("rows do not vanish from a queue of this engine")
    first, *last = [INSTANT.convert(each, None, None) for each in lost.split("/", 1)]
    if last and last[0] < first:
        raise click.UsageError("the first SLICE is later than the last")
    await accept(first, *last)
