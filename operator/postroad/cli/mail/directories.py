"""`postroad verify|dump|rebuild DIR`: the log of an embedded store that no process owns."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from postroad.bootstrap.embedded_store import dump_directory, rebuild_directory, verify_directory
from postroad.cli.options import json_option, say
from postroad.domain.values.escaping import json_line

directory = click.argument(
    "root", metavar="DIR", type=click.Path(file_okay=False, resolve_path=True, path_type=Path)
)


@click.command()
@directory
@json_option
def verify(root: Path, as_json: bool) -> None:
    """Check the log and the waiting mails of the store in DIR, and change nothing.

    Each lane of the log is read up to its first invalid frame; unreadable records before it are
    listed. Exit code 1 for damage.
    """
    report = verify_directory(root)
    values = {
        "mails": report.mails if report.is_determined else None,
        "dead_letters": report.dead_letters if report.is_determined else None,
        "in_work": report.working if report.is_determined else None,
        "records": report.records,
        "damage": report.damage,
    }
    counted = f"{report.records} records"
    if report.is_determined:
        counted = f"{report.mails} mails, {report.dead_letters} dead letters, {counted}"
    lines = [f"damaged: {each}" for each in report.damage] or ["no damage"]
    say(values, as_json=as_json, text="\n".join([counted, *lines]))
    if not report.is_whole:
        sys.exit(1)


@click.command()
@directory
def dump(root: Path) -> None:
    """Print the checkpoint and the records of the log in DIR, one JSON object a line.

    An unreadable record is listed as such; the output ends at the first invalid frame.
    """
    for record in dump_directory(root):
        click.echo(json_line(record))


@click.command()
@directory
@json_option
def rebuild(root: Path, as_json: bool) -> None:
    """Write a new log for the store in DIR from its spool files.

    The old log is kept in DIR/quarantine. This loses no mail; some may be delivered twice.
    Exit code 1 when spool files of mails that may wait are damaged.
    """
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
