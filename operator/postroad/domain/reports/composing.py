"""A report as a mail: words for people, fields for programs, and the mail that it is about. Pure.

Source: RFC 3464; RFC 6522 (multipart/report); RFC 6533 (the same in UTF-8); RFC 3834 3; RFC 3461 6.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime
from typing import NamedTuple

from postroad.domain.internationalized import ascii_address
from postroad.domain.mail import TENANT, Mail
from postroad.domain.reports.deciding import (
    DOUBLE_BOUNCE,
    REPORT,
    Action,
    ReportedRecipient,
    ReportRules,
    reporting_address,
)
from postroad.domain.reports.fields import (
    ReportedMail,
    delivery_status,
    needs_utf8,
    on_one_line,
)
from postroad.domain.shapes import with_crlf
from postroad.errors import InvalidInput

_SUBJECTS = {
    Action.FAILED: "Undelivered mail",
    Action.DELAYED: "Delayed mail (attempts go on)",
    Action.RELAYED: "Delivery report",
    Action.DELIVERED: "Delivery report",
}
_DOUBLE = "Undelivered mail with the null reverse-path"
_INTRODUCTIONS = {
    Action.FAILED: "Your mail was not delivered to these recipients, and no attempt follows:",
    Action.DELAYED: "Your mail has not reached these recipients yet. Do not send it again: attempts"
    "\r\ngo on until {until}.",
    Action.RELAYED: "Your mail was handed to a server that makes no delivery reports, for these"
    "\r\nrecipients. You may get no further notice:",
    Action.DELIVERED: "Your mail was delivered to these recipients:",
}


@dataclass(frozen=True, slots=True)
class ReportAuthor:
    """Who reports: the name of this server, and the mailbox in the field From."""

    host: str
    author: str


class Returned(NamedTuple):
    """What goes back of the mail that a report is about. `octets` are the whole mail, or its
    header."""

    octets: bytes
    is_whole: bool


class _Part(NamedTuple):
    media_type: str
    body: bytes
    description: str


def is_returned_whole(
    mail: ReportedMail, reported: tuple[ReportedRecipient, ...], size_bytes: int, rules: ReportRules
) -> bool:
    """Whether the whole mail goes back: where it failed and is not too large, unless its sender
    asked for the header alone. Source: RFC 3461 4.3, 5.3."""
    dsn = mail.envelope.dsn
    has_failed = any(each.action is Action.FAILED for each in reported)
    wants_header = mail.envelope.sender is None or (dsn is not None and dsn.ret == "HDRS")
    return has_failed and not wants_header and size_bytes <= rules.largest_returned


def report_mail(
    mail: ReportedMail,
    reported: tuple[ReportedRecipient, ...],
    returned: Returned | None,
    reporter: ReportAuthor,
    rules: ReportRules,
    moment: datetime,
) -> Mail:
    """Return the mail that reports these recipients: from the null reverse-path, without DSN
    parameters of its own. Raises: InvalidInput, where no address can get it; InvalidMail."""
    address = reporting_address(mail.envelope, rules)
    if address is None:
        raise InvalidInput("the mail has no address to report to")
    worst = next(each for each in Action if any(one.action is each for one in reported))
    is_double = mail.envelope.sender is None
    parts = [_words(mail, reported, reporter), _status(mail, reported, reporter, moment)]
    if returned is not None:
        parts.append(_original(returned))
    body, boundary = _multipart(parts)
    digest = hashlib.sha256(f"{mail.mail_id} {moment.isoformat()}".encode() + body).hexdigest()
    header = (
        f"From: Mail Delivery System <{reporter.author}>\r\n"
        f"To: <{ascii_address(address)}>\r\n"
        f"Subject: {_DOUBLE if is_double else _SUBJECTS[worst]}\r\n"
        f"Date: {format_datetime(moment.replace(microsecond=0))}\r\n"
        f"Message-ID: <{digest[:32]}@{reporter.host}>\r\n"
        "Auto-Submitted: auto-replied\r\n"
        "MIME-Version: 1.0\r\n"
        "Content-Type: multipart/report; report-type=delivery-status;\r\n"
        f'\tboundary="{boundary}"\r\n'
        f"Content-Transfer-Encoding: {_encoding(body)}\r\n"
        "\r\n"
    )
    attributes = {REPORT: DOUBLE_BOUNCE if is_double else worst.value}
    if mail.envelope.tenant is not None:
        attributes[TENANT] = mail.envelope.tenant
    return Mail(None, (address,), header.encode() + body, attributes=attributes)


def _words(
    mail: ReportedMail, reported: tuple[ReportedRecipient, ...], reporter: ReportAuthor
) -> _Part:
    lines = [f"This is the mail server {reporter.host}."]
    for action in Action:
        those = [each for each in reported if each.action is action]
        if those:
            until = format_datetime(mail.retry_until.replace(microsecond=0))
            lines += ["", _INTRODUCTIONS[action].format(until=until), ""]
        for each in those:
            lines.append(f"  <{each.address}>")
            lines += [f"    {line}" for line in _explained(each)]
    text = "\r\n".join((*lines, "")).encode("utf-8", "replace")
    charset = "us-ascii" if text.isascii() else "utf-8"
    return _Part(f"text/plain; charset={charset}", text, "Notification")


def _explained(each: ReportedRecipient) -> list[str]:
    heard, responder = on_one_line(each.outcome.text), each.outcome.responder
    lines = ["The time for attempts is over."] if each.is_expired else []
    if heard:
        lines.append(heard if responder is None else f"{responder.host} answered: {heard}")
    return lines


def _status(
    mail: ReportedMail,
    reported: tuple[ReportedRecipient, ...],
    reporter: ReportAuthor,
    moment: datetime,
) -> _Part:
    is_global = needs_utf8(mail, reported)
    name = "global-delivery-status" if is_global else "delivery-status"
    body = delivery_status(mail, reported, host=reporter.host, moment=moment, is_global=is_global)
    return _Part(f"message/{name}", body, "Delivery report")


def _original(returned: Returned) -> _Part:
    """A header in UTF-8 needs the types of RFC 6533; one in another charset has none, and goes as
    the types of before."""
    octets = with_crlf(returned.octets).replace(b"\0", b"")  # no next hop gets a mail with NUL
    header = octets.partition(b"\r\n\r\n")[0]
    is_global = not header.isascii() and _is_utf8(header)
    if returned.is_whole:
        name = "message/global" if is_global else "message/rfc822"
        return _Part(name, octets, "Undelivered mail")
    name = "message/global-headers" if is_global else "text/rfc822-headers"
    return _Part(name, header.removesuffix(b"\r\n") + b"\r\n", "Header of the mail")


def _multipart(parts: list[_Part]) -> tuple[bytes, str]:
    """Return the body and its boundary. That is a hash of the parts, so no sender can write a mail
    that has it."""
    digest = hashlib.sha256(b"".join(each.body for each in parts)).hexdigest()
    boundary = f"postroad={digest[:40]}"
    pieces = [b"This is a report in several parts, as RFC 3464 describes them.\r\n"]
    for part in parts:
        head = (
            f"\r\n--{boundary}\r\n"
            f"Content-Type: {part.media_type}\r\n"
            f"Content-Description: {part.description}\r\n"
            f"Content-Transfer-Encoding: {_encoding(part.body)}\r\n"
            "\r\n"
        )
        pieces += [head.encode(), part.body]
    return b"".join((*pieces, f"\r\n--{boundary}--\r\n".encode())), boundary


def _encoding(body: bytes) -> str:
    return "7bit" if body.isascii() else "8bit"


def _is_utf8(octets: bytes) -> bool:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return True
