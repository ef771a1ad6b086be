"""Commands on all that a queue has: `postroad maintain` and `audit`; `verify`, `dump` and `rebuild`
of an embedded store that no process owns; `erase`, also of what a forced deletion left."""

import asyncio
import sys
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from postroad.adapters.clocks import MachineClock
from postroad.cli.options import (
    DURATION,
    by_spark,
    json_option,
    plural,
    queue_option,
    say,
    with_queue,
)
from postroad.cli.progress import progress
from postroad.controller.kubernetes.api import FIELD_MANAGER
from postroad.controller.mailqueue.orphans import OrphanList
from postroad.distributed.maintenance.erasure import SERVERS, Erasable, Erasure, Part
from postroad.domain.values.instants import rfc3339
from postroad.domain.values.text import json_line
from postroad.errors import PostroadError, QueueInUse
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

    Cleanup waits a lease after browse start moved, so it needs --every."""
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
    from postroad.cli.pipeline.live_queue import audit

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
    (6 hours) are left out. Without --repair, nothing is written."""
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
        click.echo(f"{plural(count, 'object')} without a mail")


async def _accept_loss(queue: MailQueue, lost: str) -> None:
    accept = getattr(queue, "accept_loss", None)
    if accept is None:
        raise click.UsageError("rows do not vanish from a queue of this engine")
    first, *last = [_slice_start(each) for each in lost.split("/", 1)]
    if last and last[0] < first:
        raise click.UsageError("the first SLICE is later than the last")
    await accept(first, *last)


def _slice_start(text: str) -> datetime:
    """Read a moment in full: mail is given up by it, so that no word stands for one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError("write a moment as 2026-01-01T10:00:00Z") from None
    if moment.tzinfo is None:
        raise click.UsageError("a moment needs a zone, as in 2026-01-01T10:00:00Z")
    return moment.astimezone(UTC)


class DirectoryType(click.Path):
    """A directory, also by the URL of its queue."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(str(value).removeprefix("embedded://"), param, ctx)


directory = click.argument(
    "root", metavar="DIR", type=DirectoryType(file_okay=False, resolve_path=True, path_type=Path)
)


@click.command()
@directory
@json_option
def verify(root: Path, as_json: bool) -> None:
    """Check the log and the waiting mails of the store in DIR, and change nothing.

    Each lane of the log is read up to its first invalid frame; unreadable records before it are
    listed. Exit code 1 for damage."""
    from postroad.bootstrap.embedded_store import verify_directory

    with progress("reading the store"):
        report = verify_directory(root)
    values = {
        "mails": report.mails if report.is_determined else None,
        "dead_letters": report.dead_letters if report.is_determined else None,
        "in_work": report.working if report.is_determined else None,
        "records": report.records,
        "damage": report.damage,
    }
    counted = plural(report.records, "record")
    if report.is_determined:
        dead = plural(report.dead_letters, "dead letter")
        counted = f"{plural(report.mails, 'mail')}, {dead}, {counted}"
    lines = [f"damaged: {each}" for each in report.damage] or ["no damage"]
    say(values, as_json=as_json, text="\n".join([counted, *lines]))
    if not report.is_whole:
        sys.exit(1)


@click.command()
@directory
def dump(root: Path) -> None:
    """Print the checkpoint and the records of the log in DIR, one JSON object a line.

    An unreadable record is listed as such; the output ends at the first invalid frame."""
    from postroad.bootstrap.embedded_store import dump_directory

    for record in dump_directory(root):
        click.echo(json_line(record))


@click.command()
@directory
@json_option
def rebuild(root: Path, as_json: bool) -> None:
    """Write a new log for the store in DIR from its spool files.

    The old log is kept in DIR/quarantine. This loses no mail; some may be delivered twice.
    Exit code 1 when spool files of mails that may wait are damaged."""
    from postroad.bootstrap.embedded_store import rebuild_directory

    with progress("writing a new log"):
        done = asyncio.run(rebuild_directory(root))
    values = {
        "mails": done.mails,
        "finished": done.finished,
        "free_or_unfinished_files": done.unfinished_files,
        "unreadable_records": done.unreadable_records,
        "unreadable_parts": done.unreadable_parts,
        "lost": done.lost,
        "quarantine": str(done.quarantine),
    }
    lines = [f"{done.mails} mails wait; the old log is in {done.quarantine}"]
    if done.unreadable_records:
        lines.append(f"{done.unreadable_records} of its records could not be read")
    if done.unreadable_parts:
        lines.append(f"the disk could not read {done.unreadable_parts} of its pages or files")
    lines += [f"the content is damaged: {each}" for each in done.lost]
    say(values, as_json=as_json, text="\n".join(lines))
    if done.lost:
        sys.exit(1)


STEP = timedelta(seconds=5)
"""Interval of the lines about progress."""


@click.command()
@queue_option
@click.option("--confirm", metavar="NAMESPACE.NAME", help="The name of the queue, again.")
@click.option(
    "--part",
    "chosen",
    type=click.Choice([each.value for each in Part if each is not Part.HISTORY]),
    multiple=True,
    help="Erase only this (repeatable), where the server of another is gone. Default: all, and "
    "the configuration history.",
)
@click.option(
    "--listed-in",
    "namespace",
    help="Then take it off ConfigMap postroad-orphans in this namespace, by the rights of the "
    "kubeconfig or of the pod.",
)
@json_option
def erase(
    url: str, confirm: str | None, chosen: tuple[str, ...], namespace: str | None, as_json: bool
) -> None:
    """Erase a queue: its messages, its bytes, its rows with dead letters and history.

    For what a deletion left behind, by the entry of ConfigMap postroad-orphans. It may be stopped
    and called again; the exit code is 75 while a server does not answer."""
    asyncio.run(_run(url, confirm, chosen, namespace, as_json=as_json))


async def _run(
    url: str, confirm: str | None, chosen: tuple[str, ...], namespace: str | None, *, as_json: bool
) -> None:
    queue = await _erase(url, confirm, chosen, as_json=as_json)
    if namespace:
        left = await _take_off(namespace, queue, chosen or tuple(Part))
        if left:
            click.echo(f"still listed of {queue}: {', '.join(left)}", err=True)


async def _take_off(namespace: str, queue: str, erased: Collection[str]) -> Collection[str]:
    """Raises: KubernetesError."""
    from postroad.adapters.kubernetes.api_requests import load_access
    from postroad.adapters.kubernetes.api_server import ApiServer

    api = ApiServer(load_access(), FIELD_MANAGER)
    try:
        return await OrphanList(api, namespace).take_off(queue, erased)
    finally:
        await api.close()


async def _erase(url: str, confirm: str | None, chosen: tuple[str, ...], *, as_json: bool) -> str:
    """Return the name of the queue, which is erased then."""
    from postroad.bootstrap.distributed import open_erasable

    async with open_erasable(url) as queue:
        if confirm != str(queue.name):
            raise click.UsageError(
                f"this deletes all mail of the queue: add --confirm {queue.name}"
            )
        await _require_unused(queue, chosen)
        done = {each for each in Part if chosen and each.value not in chosen}
        objects, rows = 0, 0
        erasure = Erasure(queue, MachineClock())
        while len(done) < len(Part):
            steps = await erasure.proceed(done, STEP)
            done |= {part for part, each in steps.items() if each.is_done}
            objects += steps[Part.BYTES].count if Part.BYTES in steps else 0
            rows += steps[Part.ROWS].count if Part.ROWS in steps else 0
            values = {"objects": objects, "rows": rows, "done": sorted(done)}
            say(values, as_json=as_json, text=f"{objects} objects and {rows} rows are deleted")
            errors = {part: each.error for part, each in steps.items() if each.error is not None}
            if errors and all(part in errors or each.is_done for part, each in steps.items()):
                raise _first(errors)
        return str(queue.name)


async def _require_unused(queue: Erasable, chosen: tuple[str, ...]) -> None:
    """Raises: QueueInUse while consumers read the queue."""
    if chosen and Part.MESSAGES.value not in chosen:
        return
    if await queue.broker.exists() and (await queue.broker.depths()).consumers:
        raise QueueInUse(
            f"consumers read the queue {queue.name}: a MailQueue of this name took it over",
            hint="stop its workers if it is to be erased all the same",
        )


def _first(errors: dict[Part, PostroadError]) -> PostroadError:
    """Return the error to end with; one that time alone can mend last."""
    for part, error in errors.items():
        click.echo(f"{SERVERS[part]} blocks the {part}: {error.explain()}", err=True)
    lasting = [each for each in errors.values() if not each.transient]
    return next(iter(lasting or errors.values()))
