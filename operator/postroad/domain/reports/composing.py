"""A report as a mail: words for people, fields for programs, and the mail that it is about. Pure.

It is in 7 bits, so that every server on its way takes it; but to an address that only SMTPUTF8 can
express, it is international: in UTF-8, which such servers take. In other reports, addresses of the
fields stand as `utf-8-addr-xtext` has them, and the rest that is not ASCII as `?`: a reply of a
next hop is free text.
Source: RFC 3464; RFC 3463; RFC 6522 (multipart/report); RFC 6533 (the same in UTF-8); RFC 3834 3;
RFC 3461 6."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import format_datetime
from ipaddress import ip_address
from textwrap import wrap
from typing import NamedTuple
from uuid import UUID

from postroad.domain.mail.mail import REQUIRE_TLS, TENANT, Envelope, Mail
from postroad.domain.mail.seven_bits import (
    ascii_address,
    encode_address,
    in_seven_bits,
    quoted_printable,
)
from postroad.domain.mail.shapes import with_crlf
from postroad.domain.reports.deciding import (
    DOUBLE_BOUNCE,
    REPORT,
    RETURNS,
    Action,
    ReportedRecipient,
    ReportRules,
    reporting_address,
)
from postroad.errors import InvalidInput, InvalidMail

_CODES = re.compile(r"([245])\d\d(?:[ -](\d)(\.\d{1,3}\.\d{1,3})(?!\S))?")
_ATOM = re.compile(r"[A-Za-z0-9._:\[\]-]+")

_EXPIRED = "4.4.7"
"""Delivery time expired. Source: RFC 3463 3.5."""

MAX_LINE = 76

MAX_TEXTS = 128 * 1024
"""Characters of all replies in a report together, each of which stands in it twice. They share it
evenly, so that a report about a thousand recipients is no larger than servers take."""

MIN_TEXT = 60


@dataclass(frozen=True, slots=True)
class ReportedMail:
    """The mail that a report is about. `retry_until`: when it is given up."""

    envelope: Envelope
    mail_id: UUID
    accepted_at: datetime
    retry_until: datetime


def delivery_status(
    mail: ReportedMail,
    reported: tuple[ReportedRecipient, ...],
    *,
    host: str,
    moment: datetime,
    is_international: bool,
) -> bytes:
    """Return the fields about the mail, and then those about each recipient."""
    of_recipients = (_of_recipient(mail, each, moment, is_international) for each in reported)
    groups = [_of_mail(mail, host), *of_recipients]
    text = "\r\n".join("".join(_field(*each) for each in group) for group in groups)
    return text.encode("utf-8" if is_international else "ascii", "replace")


def status_of(each: ReportedRecipient) -> str:
    """Return the enhanced status code of a recipient, in the class that goes with its action."""
    if each.is_expired:
        return _EXPIRED
    kind = {Action.FAILED: "5", Action.DELAYED: "4"}.get(each.action, "2")
    found = _CODES.match(each.outcome.text)
    is_sound = found is not None and found[2] == found[1]
    return kind + (found[3] if found is not None and is_sound else ".0.0")


def mta_name(host: str) -> str:
    """Return the name of a server with its type. An IP address is a literal.

    >>> mta_name("2001:db8::1")
    'dns; [IPv6:2001:db8::1]'
    """
    try:
        address = ip_address(host)
    except ValueError:
        return f"dns; {host}"
    return f"dns; [{'IPv6:' if address.version == 6 else ''}{address}]"


def _of_mail(mail: ReportedMail, host: str) -> Iterator[tuple[str, str]]:
    envelope = mail.envelope
    if envelope.dsn is not None and envelope.dsn.envid:
        yield "Original-Envelope-Id", envelope.dsn.envid
    yield "Reporting-MTA", f"dns; {host}"
    origin = envelope.origin
    if origin is not None and origin.host and _ATOM.fullmatch(origin.host):
        yield "Received-From-MTA", f"dns; {origin.host}"
    yield "Arrival-Date", _date(mail.accepted_at)
    yield "X-Postroad-Mail-Id", str(mail.mail_id)


def _of_recipient(
    mail: ReportedMail, each: ReportedRecipient, moment: datetime, is_international: bool
) -> Iterator[tuple[str, str]]:
    dsn, outcome = mail.envelope.dsn, each.outcome
    options = None if dsn is None else dsn.recipients.get(each.address)
    if options is not None and options.orcpt:
        kind, _, address = options.orcpt.partition(";")
        yield "Original-Recipient", f"{kind};{address}"
    address = ascii_address(each.address)
    if address.isascii():
        yield "Final-Recipient", f"rfc822;{address}"
    else:
        yield "Final-Recipient", f"utf-8;{address if is_international else encode_address(address)}"
    yield "Action", each.action
    yield "Status", status_of(each)
    if outcome.responder is not None:
        yield "Remote-MTA", mta_name(outcome.responder.host)
    if outcome.text:
        kind = "X-Postroad" if outcome.responder is None else "smtp"
        yield "Diagnostic-Code", f"{kind}; {outcome.text}"
    yield "Last-Attempt-Date", _date(moment)
    if each.action is Action.DELAYED:
        yield "Will-Retry-Until", _date(mail.retry_until)


def on_one_line(text: str) -> str:
    """Return a text without line breaks or characters that no terminal prints: a next hop, or a
    program of an administrator, chose it."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _date(moment: datetime) -> str:
    return format_datetime(moment.replace(microsecond=0))


def _field(name: str, value: str) -> str:
    """Return a field on lines of its own, folded at blanks. Only free text is long enough."""
    value = on_one_line(value)
    if len(name) + len(value) + 2 <= MAX_LINE or name != "Diagnostic-Code":
        return f"{name}: {value}\r\n"
    lines = wrap(f"{name}: {value}", MAX_LINE, break_long_words=False, break_on_hyphens=False)
    return "\r\n ".join(lines) + "\r\n"


_SUBJECTS = {
    Action.FAILED: "Undelivered mail",
    Action.DELAYED: "Delayed mail (attempts go on)",
    Action.RELAYED: "Delivery report",
    Action.DELIVERED: "Delivery report",
}
_BOUNDARY = re.compile(rb'boundary="([^"]+)"')
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
    """Part of the mail that a report is about. `octets` are the whole mail, or its header."""

    octets: bytes
    is_whole: bool


class _Part(NamedTuple):
    media_type: str
    body: bytes
    description: str


def is_returned_whole(
    mail: ReportedMail, reported: tuple[ReportedRecipient, ...], size_bytes: int, rules: ReportRules
) -> bool:
    """True if the whole mail goes back: where it failed and is not too large, unless its sender
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
    reported = _bounded(reported)
    worst = next(each for each in Action if any(one.action is each for one in reported))
    is_double = mail.envelope.sender is None
    recipient = ascii_address(address)
    is_international = not recipient.isascii()
    name = "global-delivery-status" if is_international else "delivery-status"
    status = delivery_status(
        mail, reported, host=reporter.host, moment=moment, is_international=is_international
    )
    parts = [_words(mail, reported, reporter), _Part(f"message/{name}", status, "Delivery report")]
    attributes = {REPORT: DOUBLE_BOUNCE if is_double else worst.value}
    if returned is not None:
        parts.append(_original(returned, is_international=is_international))
        attributes[RETURNS] = parts[-1].media_type
    body, boundary = _multipart(parts)
    digest = hashlib.sha256(f"{mail.mail_id} {moment.isoformat()}".encode() + body).hexdigest()
    header = (
        f"From: Mail Delivery System <{reporter.author}>\r\n"
        f"To: <{recipient}>\r\n"
        f"Subject: {_DOUBLE if is_double else _SUBJECTS[worst]}\r\n"
        f"Date: {format_datetime(moment.replace(microsecond=0))}\r\n"
        f"Message-ID: <{digest[:32]}@{reporter.host}>\r\n"
        "Auto-Submitted: auto-replied\r\n"
        "MIME-Version: 1.0\r\n"
        "Content-Type: multipart/report; report-type=delivery-status;\r\n"
        f'\tboundary="{boundary}"\r\n'
        f"Content-Transfer-Encoding: {_identity(body)}\r\n"
        "\r\n"
    )
    # The report has the sender's header and addresses (RFC 8689 5).
    kept = (name for name in (TENANT, REQUIRE_TLS) if name in mail.envelope.attributes)
    attributes |= {name: mail.envelope.attributes[name] for name in kept}
    return Mail(None, (address,), header.encode() + body, attributes=attributes)


def _bounded(reported: tuple[ReportedRecipient, ...]) -> tuple[ReportedRecipient, ...]:
    share = max(MIN_TEXT, MAX_TEXTS // len(reported))
    return tuple(
        replace(each, outcome=replace(each.outcome, text=each.outcome.text[:share]))
        if len(each.outcome.text) > share
        else each
        for each in reported
    )


def shortened(envelope: Envelope, report: bytes) -> Mail:
    """Return a report without what it returns, which is its last part. Raises: InvalidMail."""
    boundary = _BOUNDARY.search(report.partition(b"\r\n\r\n")[0])
    delimiter = b"\r\n--" + (boundary[1] if boundary else b"")
    kept, found, _ = report.rpartition(delimiter + b"\r\n")
    if not boundary or not found:
        raise InvalidMail("a report has not the parts that reports are composed of")
    attributes = {name: value for name, value in envelope.attributes.items() if name != RETURNS}
    return Mail(None, envelope.recipients, kept + delimiter + b"--\r\n", attributes=attributes)


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
    text, responder = on_one_line(each.outcome.text), each.outcome.responder
    lines = ["The time for attempts is over."] if each.is_expired else []
    if text:
        lines.append(text if responder is None else f"{responder.host} answered: {text}")
    return lines


def _original(returned: Returned, *, is_international: bool) -> _Part:
    """A header in UTF-8 needs the types of RFC 6533 in an international report; what is in another
    charset has none, and goes as the types of before. What cannot be in 7 bits goes by its header,
    which is text (RFC 6522 4)."""
    octets = with_crlf(returned.octets).replace(b"\0", b"")  # no next hop gets a mail with NUL
    header = octets.partition(b"\r\n\r\n")[0].removesuffix(b"\r\n") + b"\r\n"
    is_global = is_international and not header.isascii() and _is_utf8(header)
    whole = octets if is_international or not returned.is_whole else _copied(octets)
    if returned.is_whole and whole is not None:
        return _Part(f"message/{'global' if is_global else 'rfc822'}", whole, "Undelivered mail")
    name = "message/global-headers" if is_global else "text/rfc822-headers"
    return _Part(name, header, "Header of the mail")


def _copied(octets: bytes) -> bytes | None:
    """Return a mail in 7 bits, without regard to its signatures; None where that cannot be."""
    steps = in_seven_bits(octets, is_copy=True)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return None if end.value is None else b"".join(end.value)


def _multipart(parts: list[_Part]) -> tuple[bytes, str]:
    """Return the body and its boundary, a hash of the parts: no sender can write a mail with it."""
    digest = hashlib.sha256(b"".join(each.body for each in parts)).hexdigest()
    boundary = f"postroad={digest[:40]}"
    pieces = [b"This is a report in several parts, as RFC 3464 describes them.\r\n"]
    for media_type, body, description in parts:
        is_quoted = not body.isascii() and media_type.startswith("text/")
        head = (
            f"\r\n--{boundary}\r\n"
            f"Content-Type: {media_type}\r\n"
            f"Content-Description: {description}\r\n"
            f"Content-Transfer-Encoding: {'quoted-printable' if is_quoted else _identity(body)}\r\n"
            "\r\n"
        )
        pieces += [head.encode(), quoted_printable(body) if is_quoted else body]
    return b"".join((*pieces, f"\r\n--{boundary}--\r\n".encode())), boundary


def _identity(body: bytes) -> str:
    return "7bit" if body.isascii() else "8bit"


def _is_utf8(octets: bytes) -> bool:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return True
