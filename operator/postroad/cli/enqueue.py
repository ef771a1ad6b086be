"""`postroad enqueue`: queues messages from files or standard input."""

from __future__ import annotations

import sys
from datetime import timedelta
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import getaddresses
from pathlib import Path

import click

from postroad.cli.queue_options import DURATION, json_option, say, with_queue
from postroad.domain.mail import HIGHEST_PRIORITY, LOWEST_PRIORITY, Mail
from postroad.ports.mail_queue import NO_DELAY, MailQueue


@click.command()
@with_queue
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--from", "sender", help="The reverse-path; default: the From field. '<>': null.")
@click.option("--to", "recipients", multiple=True, help="Repeatable; default: To and Cc fields.")
@click.option("--delay", type=DURATION, default=NO_DELAY, help="Due after this time, e.g. 5m.")
@click.option("--name", help="A name to find the mail by; default: none.")
@click.option(
    "--priority",
    type=click.IntRange(LOWEST_PRIORITY, HIGHEST_PRIORITY),
    default=0,
    help="Kept with the mail; higher is more urgent.",
)
@json_option
async def enqueue(
    queue: MailQueue,
    files: tuple[Path, ...],
    sender: str | None,
    recipients: tuple[str, ...],
    delay: timedelta,
    name: str | None,
    priority: int,
    as_json: bool,
) -> None:
    """Queue messages from FILES, or one from standard input; print their enqueue ids."""
    contents = [path.read_bytes() for path in files] or [sys.stdin.buffer.read()]
    if not all(contents):
        raise click.UsageError(
            "the message is empty: give a file, or the message on standard input"
        )
    mails = [_mail(content, sender, recipients, name, priority) for content in contents]
    for mail in mails:
        enqueue_id = str(await queue.enqueue(mail, delay))
        say({"enqueue_id": enqueue_id}, as_json=as_json, text=enqueue_id)


def _mail(
    content: bytes, sender: str | None, recipients: tuple[str, ...], name: str | None, priority: int
) -> Mail:
    header = BytesHeaderParser().parsebytes(content)
    chosen = _sender(header) if sender is None else sender
    return Mail(
        sender=None if chosen in {"", "<>"} else chosen,
        recipients=recipients or _recipients(header),
        content=content,
        name=name,
        priority=priority,
    )


def _sender(header: Message) -> str:
    found = _addresses(header, "From")
    if len(found) != 1:
        raise click.UsageError("the message has not exactly one From address: give --from")
    return found[0]


def _recipients(header: Message) -> tuple[str, ...]:
    """Return the recipients the header names. Bcc is refused: its field would be sent to all."""
    if header.get_all("Bcc"):
        raise click.UsageError("the message has a Bcc field, which all would see: give --to")
    found = _addresses(header, "To", "Cc")
    if not found:
        raise click.UsageError("the message names no recipients: give --to")
    return tuple(dict.fromkeys(found))


def _addresses(header: Message, *fields: str) -> list[str]:
    values = [str(value) for field in fields for value in header.get_all(field, [])]
    return [address for _, address in getaddresses(values) if address]
