"""A mail as `sendmail` makes it of what a program on this machine writes: line ends, domains of
local names, fields that lack. Pure. Postfix completes local mail so, too (cleanup(8)).

Source: RFC 6409 8."""

import os
import re
from dataclasses import dataclass
from datetime import datetime
from email.parser import BytesHeaderParser
from email.utils import format_datetime, formataddr
from uuid import UUID

import click

from postroad.cli.mail.enqueue import addresses_of, is_resent, message_of
from postroad.cli.mail.sendmail_options import SendmailOptions
from postroad.domain.mail.address_lists import HeaderField, addresses_in, fields_of
from postroad.domain.mail.mail import DsnOptions, Mail
from postroad.domain.mail.shapes import with_crlf
from postroad.errors import InvalidInput
from postroad.intake.submitted_header import SubmittedHeader

_HEADER = re.compile(rb"(?:[!-9;-~]++[ \t]*+:[^\n]*+\n(?:[ \t][^\n]*+\n)*+)*+")
_DOT_LINE = re.compile(rb"^\.(?:\r?\n|\Z)", re.MULTILINE)
_OF_ADDRESSES = frozenset(("from", "sender", "reply-to", "to", "cc"))


class SendmailRefused(Exception):
    """`sendmail` does not do what it was called for; `exit_code` is one of sysexits(3)."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class LocalNames:
    """Domains of local names: as senders they get `domain`; as recipients they
    become `local_to`, or get `domain` where that `is_for_recipients`."""

    domain: str
    is_for_recipients: bool
    local_to: str | None

    def qualified(self, address: str) -> str:
        return address if "@" in address else f"{address}@{self.domain}"

    def recipient(self, address: str) -> str:
        """Return the recipient's address. Raises: SendmailRefused."""
        if "@" in address or self.is_for_recipients or self.local_to:
            return self.qualified(address if "@" in address else self.local_to or address)
        raise SendmailRefused(
            os.EX_NOUSER,
            f"{address} is a local name, and there are no mailboxes here: set localTo or domain in"
            " the file of sendmail (docs/host.md)",
        )


@dataclass(frozen=True, slots=True)
class Submitter:
    """The user of this machine whose program sends."""

    name: str
    number: int


def submitted(
    content: bytes,
    options: SendmailOptions,
    names: LocalNames,
    user: Submitter,
    mail_id: UUID,
    moment: datetime,
) -> Mail:
    """Return the mail. Raises: SendmailRefused, InvalidMail."""
    given = user.name if options.sender is None else options.sender
    try:
        message = message_of(_up_to_dot(content) if options.ends_at_dot else content)
        found = [each for text in options.recipients for each in addresses_in(text, local_too=True)]
        if options.are_recipients_in_header:
            found += _recipients_in(message)
        [sender] = addresses_in(given, local_too=True) if given else [""]
    except click.UsageError as error:
        raise SendmailRefused(os.EX_DATAERR, error.message) from error
    except ValueError as error:
        raise SendmailRefused(os.EX_USAGE, "the sender (-f) is not one address") from error
    if not found:
        where = (
            "the header names no recipients"
            if options.are_recipients_in_header
            else "give them, or -t"
        )
        raise SendmailRefused(os.EX_USAGE, f"there are no recipients: {where}")
    if not (options.full_name or "").isprintable():  # it would end the field From
        raise SendmailRefused(os.EX_USAGE, "the name (-F) has a control character")
    recipients = tuple(dict.fromkeys(map(names.recipient, found)))
    author = formataddr((options.full_name, names.qualified(sender or user.name)))
    dsn = DsnOptions(options.dsn.ret, options.dsn.envid, dict.fromkeys(recipients, options.notify))
    asks = dsn.ret or dsn.envid or options.notify.notify
    return Mail(
        sender=names.qualified(sender) if sender else None,
        recipients=recipients,
        content=_completed(message, author, names, user, mail_id, moment, options.full_name),
        dsn=dsn if asks else None,
    )


def _up_to_dot(content: bytes) -> bytes:
    found = _DOT_LINE.search(content)
    return content[: found.start()] if found else content


def _recipients_in(message: bytes) -> list[str]:
    """Return the recipients that the header names. Raises: UsageError."""
    header = BytesHeaderParser().parsebytes(message)
    prefix = "Resent-" if is_resent(header) else ""
    fields = [f"{prefix}{each}" for each in ("To", "Cc", "Bcc")]
    return addresses_of(header, fields, "recipients instead of -t", local_too=True)


def _completed(
    message: bytes,
    author: str,
    names: LocalNames,
    user: Submitter,
    mail_id: UUID,
    moment: datetime,
    full_name: str,
) -> bytes:
    """Return the content with CRLF at the end of each line and without NUL, which the intake
    refuses, and with all that its header needs. A line that belongs to no field begins the body."""
    text = with_crlf(message.replace(b"\0", b""))
    text += b"" if text.endswith(b"\n") else b"\r\n"
    found = _HEADER.match(text)
    assert found is not None  # the empty text matches
    end = found.end()
    fields = fields_of(text[:end])
    trace = (
        f"Received: by {names.domain} (postroad, from userid {user.number})\r\n"
        f"\tid {mail_id}; {format_datetime(moment)}"
    ).encode()
    lines = [trace, *(_qualified(each, names, full_name) for each in fields)]
    if not any(each.name == "from" for each in fields):
        lines.append(f"From: {author}".encode())
    body = text[end:] if text[end:].startswith(b"\r\n") else b"\r\n" + text[end:]
    header = SubmittedHeader(None, f"{mail_id}@{names.domain}", moment)
    return header.feed(b"".join(each + b"\r\n" for each in lines) + body, is_end=True)


def _qualified(field: HeaderField, names: LocalNames, full_name: str) -> bytes:
    """Return a field whose addresses all have a domain, as a `From: root (Cron Daemon)` has not;
    one that no reader would understand stays as it is."""
    octets = field.octets.removesuffix(b"\r\n")
    if field.name not in _OF_ADDRESSES or not octets.isascii():
        return octets
    try:
        addresses = addresses_in(field.value, local_too=True)
    except InvalidInput:
        return octets
    if all("@" in each for each in addresses):
        return octets
    author = full_name if field.name == "from" else ""
    written = [formataddr((author, names.qualified(each))) for each in addresses]
    return octets.partition(b":")[0] + b": " + ", ".join(written).encode()
