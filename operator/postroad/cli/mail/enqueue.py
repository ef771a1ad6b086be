"""`postroad enqueue`: queues messages from files or standard input."""

import re
import sys
from collections.abc import Iterable
from datetime import timedelta
from email.message import Message
from email.parser import BytesHeaderParser
from pathlib import Path

import click

from postroad.cli.options import DURATION, json_option, say, with_queue
from postroad.domain.mail.address_lists import addresses_in
from postroad.domain.mail.mail import MAX_PRIORITY, MIN_PRIORITY, Mail
from postroad.errors import InvalidInput
from postroad.ports.mail_queue import NO_DELAY, MailQueue

_BEFORE_HEADER = re.compile(rb"\A(?:\xef\xbb\xbf)?(?:>?From [^\n]*(?:\n|\Z))*")
"""Octets that editors and mailbox files put before the first field, and no field is: a byte order
mark, lines that begin with From and a space."""

_OF_A_MAILBOX = re.compile(rb"\A(?:\xef\xbb\xbf)?From ")
_NEXT_MESSAGE = re.compile(rb"\n\r?\nFrom [^\n]*\n(?=[!-9;-~]+:)")
"""In a mailbox file, what separates two messages: mailboxes quote such lines of a text."""

_END_OF_HEADER = re.compile(rb"^\r?\n", re.MULTILINE)
_BARE_CR = re.compile(rb"\r(?!\n)")


@click.command()
@with_queue
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--from", "sender", help="The reverse-path; default: the From field. '<>': null.")
@click.option("--to", "recipients", multiple=True, help="Repeatable; default: To and Cc fields.")
@click.option("--delay", type=DURATION, default=NO_DELAY, help="Due after this time, e.g. 5m.")
@click.option("--name", help="A name to find the mail by; default: none.")
@click.option(
    "--priority",
    type=click.IntRange(MIN_PRIORITY, MAX_PRIORITY),
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
    read = [path.read_bytes() for path in files] or [sys.stdin.buffer.read()]
    contents = list(map(message_of, read))
    mails = [_mail(content, sender, recipients, name, priority) for content in contents]
    for mail in mails:
        enqueue_id = str(await queue.enqueue(mail, delay))
        say({"enqueue_id": enqueue_id}, as_json=as_json, text=enqueue_id)


def message_of(content: bytes) -> bytes:
    """Return a message as it begins with its header. Raises: UsageError for none, and for several:
    all but the first would be text of that."""
    if _OF_A_MAILBOX.match(content) and _NEXT_MESSAGE.search(content):
        raise click.UsageError(
            "a mailbox of several messages: give each by itself, as `formail -s postroad enqueue`"
            " does"
        )
    message = _BEFORE_HEADER.sub(b"", content)
    if not message:
        raise click.UsageError(
            "the message is empty: give a file, or the message on standard input"
        )
    if _BARE_CR.search(_END_OF_HEADER.split(message, 1)[0]):
        raise click.UsageError(
            "a line of the header ends with CR alone, or has one: end lines with LF or CRLF"
        )
    return message


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
    names = ("Resent-Sender",) if "Resent-Sender" in header else ("Resent-From",)
    found = addresses_of(header, names if is_resent(header) else ("From",), "--from")
    if len(found) != 1:
        raise click.UsageError("the message has not exactly one From address: give --from")
    return found[0]


def _recipients(header: Message) -> tuple[str, ...]:
    """Return the recipients that the header names: of a message that was resent, those to which it
    was. Bcc is refused, unless it is empty: its field would be sent to all. Source: RFC 5322 3.6.3,
    3.6.6."""
    prefix = "Resent-" if is_resent(header) else ""
    if any(value.strip() for value in header.get_all("Bcc", []) + header.get_all("Resent-Bcc", [])):
        raise click.UsageError("the message has a Bcc field, which all would see: give --to")
    found = addresses_of(header, (f"{prefix}To", f"{prefix}Cc"), "--to")
    if not found:
        raise click.UsageError("the message names no recipients: give --to")
    return tuple(dict.fromkeys(found))


def is_resent(header: Message) -> bool:
    return any(name.lower().startswith("resent-") for name in header)


def addresses_of(
    header: Message, names: Iterable[str], instead: str, *, local_too: bool = False
) -> list[str]:
    """Return the addresses of fields, as `addresses_in` does. Their values are not decoded by the
    parser, which would put other characters for UTF-8. Raises: UsageError, which says what to give
    `instead`."""
    found: list[str] = []
    if header.defects:
        raise click.UsageError(f"a line of the header belongs to no field: give {instead}")
    for name in names:
        values = [value for each, value in header.raw_items() if each.lower() == name.lower()]
        if len(values) > 1 and name.startswith("Resent-"):
            raise click.UsageError(f"the message was resent more than once: give {instead}")
        for value in values:
            octets = value.encode("utf-8", "surrogateescape")
            try:
                text = octets.decode("utf-8", "surrogateescape")
                found += addresses_in(text, local_too=local_too)
            except InvalidInput as error:
                raise click.UsageError(f"{name} cannot be read: {error}; give {instead}") from error
    return found
