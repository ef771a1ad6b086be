"""The fields of a delivery status, as programs read them. Pure.

What is not ASCII stands in them as UTF-8 where the report is international (RFC 6533 3), else
addresses as `utf-8-addr-xtext` has them, and the rest as `?`: a reply of a next hop is free text.
Source: RFC 3464 2; RFC 3463; RFC 6533 3, 4; RFC 6522.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime
from ipaddress import ip_address
from textwrap import wrap
from uuid import UUID

from postroad.domain.mail.internationalized import ascii_address
from postroad.domain.mail.mail import Envelope
from postroad.domain.mail.xtext import encode_address
from postroad.domain.reports.deciding import Action, ReportedRecipient

_CODES = re.compile(r"([245])\d\d(?:[ -](\d)(\.\d{1,3}\.\d{1,3})(?!\S))?")
_ATOM = re.compile(r"[A-Za-z0-9._:\[\]-]+")

_EXPIRED = "4.4.7"
"""Delivery time expired. Source: RFC 3463 3.5."""

LONGEST_LINE = 76


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
    if len(name) + len(value) + 2 <= LONGEST_LINE or name != "Diagnostic-Code":
        return f"{name}: {value}\r\n"
    lines = wrap(f"{name}: {value}", LONGEST_LINE, break_long_words=False, break_on_hyphens=False)
    return "\r\n ".join(lines) + "\r\n"
