"""Reads what comes back: delivery status notifications, complaints, and reports in the forms of
single servers. Pure; bounded in time, since any client writes such mail.

The standard library splits a message into parts, and flufl.bounce finds failed recipients in forms
that no standard has.
Source: RFC 3464; RFC 6533 (addresses in UTF-8); RFC 5965; RFC 3834; ADR 0091."""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.errors import MessageError
from email.message import Message
from email.parser import BytesParser, HeaderParser
from email.policy import Compat32
from email.utils import collapse_rfc2231_value
from enum import StrEnum, auto
from html import unescape
from itertools import islice
from typing import Any, AnyStr

from flufl.bounce import all_failures

from postroad.domain.delivery.suppressed import compared
from postroad.domain.mail.address_lists import MAX_SEARCHED
from postroad.domain.smtp.bounces import MAX_READ as MAX_REASON
from postroad.domain.smtp.bounces import Bounce, BounceClass, bounce_of
from postroad.errors import InvalidInput

MAX_READ = MAX_SEARCHED
"""Octets of a mail that are looked at: what reports say stands before the mail that they return."""

MAX_NESTED, MAX_PARTS, MAX_FIELD = 20, 300, 2000
"""Boundaries, since each line is compared with all that are open; parts, those of a status among
them; characters of a field."""

MAX_RECIPIENTS, MAX_NAMES = 100, 200
"""Recipients of a report, and addresses that are compared with a digest of the recipient."""

MAX_LINES = 12
"""Lines of a text in which the reason is looked for, from the recipient's on."""

logging.getLogger("flufl.bounce").setLevel(logging.CRITICAL)  # a line for each form


class ReturnKind(StrEnum):
    """Kind of what comes back, about one recipient."""

    BOUNCE = auto()
    COMPLAINT = auto()
    DELAY = auto()
    DELIVERY = auto()
    """A report that the mail arrived, or went on to where none reports."""

    AUTOMATIC = auto()
    """An answer by a program, as that its reader is away."""

    OTHER = auto()


@dataclass(frozen=True, slots=True)
class ReturnedRecipient:
    """Part of a report about one recipient. `names`: addresses of it; `text`: as a reply."""

    names: tuple[str, ...]
    kind: ReturnKind
    text: str


@dataclass(frozen=True, slots=True)
class ReturnedMail:
    """A mail that came back. `kind`: a bounce, if one recipient's mail failed; `paths`:
    reverse-paths of the mail that a complaint is about; `names`: all who may be its recipient;
    `text`: what people read of a report."""

    kind: ReturnKind
    recipients: tuple[ReturnedRecipient, ...] = ()
    feedback: str = ""
    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    text: str = ""
    message_id: str | None = None

    def about(self, recipient: str) -> tuple[ReturnedRecipient, bool]:
        """Return what it says about a recipient, and whether it names this one; a report that names
        one other alone is about where that one's mail went."""
        for each in self.recipients:
            if any(_same(name, recipient) for name in each.names):
                return each, True
        if len(self.recipients) == 1:
            return self.recipients[0], not self.recipients[0].names
        return ReturnedRecipient((), self.kind, ""), False

    def bounce(self, reported: ReturnedRecipient, recipient: str) -> tuple[Bounce, str]:
        """Return how a failure is counted, and its text as a reply; where its codes say nothing,
        what people read of it decides."""
        found = bounce_of(reported.text, (recipient,))
        if found.reason is not BounceClass.OTHER:
            return found, reported.text
        text = _reason_in(self.text, recipient)
        read = bounce_of(text, (recipient,))
        is_more = read.reason is not BounceClass.OTHER or not reported.text
        return (read, text) if is_more else (found, reported.text)


class _TooMany(Exception):
    """A message has more parts than are looked at."""


class _Bounded(Compat32):
    """Fields up to a length, of which the library takes quadratic time; in UTF-8."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value[:MAX_FIELD]

    def header_fetch_parse(self, name: str, value: str) -> str:
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


_POLICY = _Bounded()

_NO_CHARSETS = frozenset(("punycode", "idna", "unicode-escape", "raw-unicode-escape"))
"""Codecs of Python that are no charsets of mail. Decoding `punycode` takes quadratic time, and the
forms of other servers decode a text some forty times."""


MAX_WIDTH, MAX_SIGNS = 400, 10
"""Octets of a line, and of each sign around addresses in it, that those forms are looked for in:
their expressions take cubic time, also on a line that an encoding makes as long as the mail."""


def _shortened(line: AnyStr, *signs: AnyStr) -> AnyStr:
    line = line[:MAX_WIDTH]
    for each in signs:
        line = each.join(line.split(each)[: MAX_SIGNS + 1])
    return line


class _Part(Message):
    is_searched = False
    """True once forms of other servers are looked for in it."""

    def get_payload(self, *given: Any, **more: Any) -> Any:
        payload = super().get_payload(*given, **more)
        if isinstance(payload, str) and self.is_searched:
            return "\n".join(_shortened(each, "<", "@") for each in payload.split("\n"))
        if isinstance(payload, bytes) and self.is_searched:
            return b"\n".join(_shortened(each, b"<", b"@") for each in payload.split(b"\n"))
        return payload

    def get_param(self, param: str, *rest: Any, **more: Any) -> Any:
        value = super().get_param(param, *rest, **more)
        if param != "charset" or not isinstance(value, str | tuple):
            return value
        try:
            name = codecs.lookup(collapse_rfc2231_value(value)).name
        except (LookupError, ValueError):
            return value  # which its decoder refuses
        return "utf-8" if name.replace("_", "-") in _NO_CHARSETS else value


_GLOBAL = re.compile(rb"message/global(-delivery-status|-headers)?(?=[\s;])", re.IGNORECASE)
_PLAIN = {
    None: b"message/rfc822",
    b"-delivery-status": b"message/delivery-status",
    b"-headers": b"text/rfc822-headers",
}
_MESSAGE_ID = re.compile(rb"^message-id:\s{0,5}(<[!-=?-~]{1,250}>)", re.IGNORECASE | re.MULTILINE)


def read_returned(octets: bytes) -> ReturnedMail:
    """Read a mail that came back; whatever it is made of, it is of some kind."""
    octets = _GLOBAL.sub(
        lambda found: _PLAIN[found[1] and found[1].lower()], octets[:MAX_READ]
    ).replace(b"\0", b"")
    bounds = [each.start() for each in re.finditer(rb"boundary", octets, re.IGNORECASE)]
    if len(bounds) > MAX_NESTED:
        octets = octets[: bounds[MAX_NESTED]]
    try:
        return _read(octets, _parsed(octets))
    except (_TooMany, MessageError, ValueError, LookupError, TypeError, AttributeError,
            RecursionError):  # fmt: skip  # of a library that strangers feed
        return ReturnedMail(ReturnKind.OTHER)


def _parsed(octets: bytes) -> Message:
    left = MAX_PARTS

    def made(policy: Compat32 = _POLICY) -> Message:
        nonlocal left
        left -= 1
        if left < 0:
            raise _TooMany
        return _Part(policy)

    return BytesParser(made, policy=_POLICY).parsebytes(octets)


def _read(octets: bytes, message: Message) -> ReturnedMail:
    parts = list(_parts(message))
    enclosed = [header for each in parts if (header := _enclosed(each)) is not None]
    behind = octets.find(b"\n", octets.find(b"\n\r\n") + 1)
    message_id = _MESSAGE_ID.search(octets, max(0, behind))
    found = ReturnedMail(
        ReturnKind.OTHER,
        names=tuple(islice(_names_of(enclosed), MAX_NAMES)),
        paths=tuple(_all(enclosed[:MAX_NESTED], "return-path")),
        text=_text_of(parts),
        message_id=message_id[1].decode() if message_id else None,
    )
    by_type = {each.get_content_type(): each for each in parts}
    if (feedback := by_type.get("message/feedback-report")) is not None:
        return _complaint(found, feedback)
    if (status := by_type.get("message/delivery-status")) is not None:
        return _report(found, status)
    if "message/disposition-notification" in by_type:
        return _of(found, ReturnKind.AUTOMATIC)
    for each in parts:
        if each.get_content_type() == "message/rfc822":
            each.set_payload([])  # which the forms would be looked for in, too
    return _of_other_form(found, message)


def _of(found: ReturnedMail, kind: ReturnKind, *recipients: ReturnedRecipient) -> ReturnedMail:
    named = tuple(name for each in recipients for name in each.names)
    return ReturnedMail(
        kind, recipients, "", found.paths, named + found.names, found.text, found.message_id
    )


def _parts(message: Message) -> Iterator[Message]:
    """Yield the parts of a message, none of what it encloses."""
    yield message
    if message.get_content_maintype() == "multipart" and message.is_multipart():
        for each in message.get_payload():
            if isinstance(each, Message):
                yield from _parts(each)


def _enclosed(part: Message) -> Message | None:
    """Return the header of a mail that a part encloses; None: it encloses none."""
    kind, payload = part.get_content_type(), part.get_payload()
    if kind == "message/rfc822" and isinstance(payload, list) and payload:
        inner = payload[0]
        return inner if isinstance(inner, Message) else None
    if kind == "text/rfc822-headers":
        return HeaderParser(policy=_POLICY).parsestr(_decoded(part))
    return None


def _complaint(found: ReturnedMail, part: Message) -> ReturnedMail:
    payload = part.get_payload()
    fields = payload[0] if isinstance(payload, list) and payload else payload
    if not isinstance(fields, Message):
        fields = HeaderParser(policy=_POLICY).parsestr(_decoded(part))
    return ReturnedMail(
        ReturnKind.COMPLAINT,
        feedback=_value(fields, "feedback-type").lower().removesuffix("-list"),
        paths=(*_all([fields], "original-mail-from"), *found.paths),
        names=(*_all([fields], "original-rcpt-to", "removal-recipient"), *found.names),
        message_id=found.message_id,
    )


_ACTIONS = {
    "fail": ReturnKind.BOUNCE,
    "erro": ReturnKind.BOUNCE,  # of OpenSMTPD
    "dela": ReturnKind.DELAY,
    "deli": ReturnKind.DELIVERY,
    "rela": ReturnKind.DELIVERY,
    "expa": ReturnKind.DELIVERY,
}


def _report(found: ReturnedMail, status: Message) -> ReturnedMail:
    blocks = status.get_payload()
    recipients = []
    for each in blocks[:MAX_RECIPIENTS] if isinstance(blocks, list) else ():
        if not isinstance(each, Message):
            continue
        kind = _ACTIONS.get(_value(each, "action")[:4].lower())
        if kind is None:
            continue
        names = _all([each], "original-recipient", "final-recipient", "x-actual-recipient")
        recipients.append(ReturnedRecipient(tuple(names), kind, _reply_of(each)))
    kinds = [each.kind for each in recipients] or [ReturnKind.OTHER]
    kind = ReturnKind.BOUNCE if ReturnKind.BOUNCE in kinds else kinds[0]
    return _of(found, kind, *recipients)


_CODES = re.compile(r"([245]\d\d)?[ -]*#?([245]\.\d{1,3}\.\d{1,3})?(?!\d)[ :-]*")


def _reply_of(block: Message) -> str:
    """Return the reply that a block is about, with the code that its server gave it."""
    kind, _, said = _value(block, "diagnostic-code").partition(";")
    said = (said or kind).strip()
    status = re.match(r"[245]\.\d{1,3}\.\d{1,3}", _value(block, "status"))
    codes = _CODES.match(said)
    assert codes is not None  # it matches nothing, too
    if status is None or codes[2]:
        return said
    rest = said[codes.end() :]
    return " ".join(filter(None, (codes[1], status[0], rest)))


def _of_other_form(found: ReturnedMail, message: Message) -> ReturnedMail:
    for each in message.walk():
        if isinstance(each, _Part):
            each.is_searched = True
    temporary, permanent = all_failures(message)
    for kind, addresses in ((ReturnKind.BOUNCE, permanent), (ReturnKind.DELAY, temporary)):
        if addresses:
            names = sorted(each.decode("ascii", "replace") for each in addresses)[:MAX_RECIPIENTS]
            return _of(found, kind, *(ReturnedRecipient((each,), kind, "") for each in names))
    submitted = _value(message, "auto-submitted").lower()
    answers = ("x-autoreply", "x-autorespond", "x-auto-response-suppress")
    is_answer = submitted not in ("", "no") or any(each in message for each in answers)
    return _of(found, ReturnKind.AUTOMATIC if is_answer else ReturnKind.OTHER)


_ADDRESS = re.compile(r"[^\s<>()\[\]\",;:@]{1,64}@[^\s<>()\[\]\",;:@]{1,255}")
_RECIPIENTS = ("to", "cc", "delivered-to", "x-original-to", "x-hmxmroriginalrecipient")


def _names_of(headers: list[Message]) -> Iterator[str]:
    for each in _all(headers, *_RECIPIENTS):
        yield from _ADDRESS.findall(each)


def _all(headers: list[Message], *names: str) -> list[str]:
    """Return the addresses of fields, without their types and brackets."""
    found = []
    for header in headers:
        for name in names:
            for value in header.get_all(name, ())[:3]:
                text = str(value)[:MAX_FIELD].strip()
                text = re.sub(r"^(?:rfc822|utf-8)\s*;\s*", "", text, flags=re.IGNORECASE)
                found.append(text.strip("<>") if name not in _RECIPIENTS else text)
    return found


def _value(header: Message, name: str) -> str:
    return " ".join(str(header.get(name, ""))[:MAX_FIELD].split())


def _decoded(part: Message) -> str:
    octets = part.get_payload(decode=True)
    if not isinstance(octets, bytes):
        return ""
    try:
        return octets.decode(part.get_content_charset("utf-8"), "replace")
    except LookupError:
        return octets.decode("utf-8", "replace")


def _text_of(parts: list[Message]) -> str:
    """Return what people read first."""
    texts = {each.get_content_subtype(): each for each in reversed(parts) if _is_text(each)}
    if "plain" in texts:
        return _decoded(texts["plain"])
    if "html" in texts:
        text = re.sub(r"<(?:br|/p|/div|/tr|/td)\b[^<>]{0,200}>", "\n", _decoded(texts["html"]))
        return unescape(re.sub(r"<[^<>]{0,500}>", " ", text))
    return ""


def _is_text(part: Message) -> bool:
    return part.get_content_maintype() == "text" and part.get_content_subtype() != "rfc822-headers"


_CODE = re.compile(r"(?<![\d.#])(?:[45]\d\d[ -]+(?=\S)|#?[45]\.\d{1,2}\.\d{1,3}(?![.\d]))")


def _reason_in(text: str, recipient: str) -> str:
    """Return the reason in a text: from a code on, behind the recipient's name if it stands
    there."""
    at = max(0, text.lower().find(recipient.lower()))
    lines = [each.strip(" >|\t") for each in text[at:].splitlines()]
    near = " ".join(list(filter(None, lines))[:MAX_LINES])
    code = _CODE.search(near)
    return near[code.start() if code else 0 :][:MAX_REASON]


def _same(name: str, recipient: str) -> bool:
    try:
        return compared(name) == compared(recipient)
    except InvalidInput:
        return False
