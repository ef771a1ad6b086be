"""A mail as filters get it, and their decisions about it. Pure.

All kinds of filters decide by the same value: a function returns it, a hook answers it in JSON, the
dialogue with a milter ends in it. `applied` checks it, so that no filter can make a header, an
address or a line that the intake would refuse from a client."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from postroad.domain.mail.mail import Origin, check_mailbox
from postroad.domain.mail.shapes import (
    MAX_HEADER,
    MAX_LINE,
    MAX_RECEIVED_FIELDS,
    LineMeter,
    with_crlf,
)
from postroad.domain.smtp.replies import MAX_TEXT, Reply
from postroad.errors import InvalidInput

MAX_CHANGES = 1000
"""Changes of the header, and recipients added, by one filter to one mail."""

MAX_REMOVALS = 10_000
"""Fields, and recipients, that one filter may remove of one mail: more than a mail has, so that no
sender can make the filter fail."""

MAX_REPLY_LINES = 20

_NAME = re.compile(r"[!-9;-~]{1,76}")
_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:")
_FOLDED = re.compile(rb"\r\n(?![ \t])")
_LINE_END = re.compile(r"\r?\n")  # splitlines ends lines at U+2028 and others, too
_REPLY = re.compile(r"([45][0-9][0-9])(?:[ -](.*))?")


class FilterFailed(InvalidInput):
    """A filter did not decide: what it did, without a word of the mail."""


@dataclass(frozen=True, slots=True)
class FilteredMail:
    """A mail that is not accepted yet. `name` is in its Received field and in logs; `content` is
    the message as it was sent, changed by the filters before. Its repr shows no address."""

    name: str
    hostname: str
    """Of the intake."""

    sender: str | None
    """None: the null reverse-path."""

    recipients: tuple[str, ...]
    content: bytes
    client: Origin
    """Name in EHLO, address, protocol."""

    user: str | None = None
    """The one who has logged in."""

    tenant: str | None = None
    tls: tuple[str, str] | None = None
    """Version and cipher over which it came."""

    def __repr__(self) -> str:
        return f"<FilteredMail name={self.name!r} recipients={len(self.recipients)}>"


@dataclass(frozen=True, slots=True)
class HeaderChange:
    """A change of one field. `add`: at the end of the header; `insert`: before the field with that
    index; `change`: of the fields with that name, the one with that index is replaced, and the
    field added where there is none; `remove`: that one is removed, if it is there. `index` counts
    from 1, `value` may be folded."""

    action: Literal["add", "insert", "change", "remove"]
    name: str
    value: str = ""
    index: int = 1


@dataclass(frozen=True, slots=True)
class FilterDecision:
    """Decision about a mail. Its repr shows no address."""

    __pydantic_config__ = {"extra": "forbid", "val_json_bytes": "base64"}  # noqa: RUF012

    verdict: Literal["accept", "defer", "reject", "discard"] = "accept"
    """Discard: the client gets a 250, and no one the mail."""

    reply: str | None = None
    """With defer and reject alone: `450 4.7.1 …`, `550 5.7.1 …`; of several lines, each has the
    code."""

    hold: str | None = None
    """Reason why the mail is held once it is accepted, until an administrator releases it."""

    headers: tuple[HeaderChange, ...] = field(default=(), repr=False)
    sender: str | None = field(default=None, repr=False)
    """The sender it has from now on, `""`: the null reverse-path. None: unchanged."""

    add_recipients: tuple[str, ...] = field(default=(), repr=False)
    remove_recipients: tuple[str, ...] = field(default=(), repr=False)
    body: bytes | None = field(default=None, repr=False)
    """All that stands behind the header from now on. None: unchanged."""


_DEFAULTS = {
    "accept": None,
    "defer": "451 4.7.1 not now, come again",
    "reject": "550 5.7.1 refused",
    "discard": None,
}


def reply_of(decision: FilterDecision) -> Reply | None:
    """Return the reply that refuses a mail; None: none does. Raises: FilterFailed,
    KeyError."""
    if (default := _DEFAULTS[decision.verdict]) is None:
        if decision.reply:
            raise FilterFailed(f"it gives a reply to {decision.verdict}")
        return None
    lines = _LINE_END.split((decision.reply or default).rstrip("\r\n"))[:MAX_REPLY_LINES]
    found = [_REPLY.fullmatch(line) for line in lines]
    codes = {each and each[1] for each in found}
    code = codes.pop()
    if codes or code is None or code[0] != default[0]:
        raise FilterFailed(f"its reply is none that means {decision.verdict}")
    texts = (_with_code(re.sub(r"[^ -~]", " ", each[2] or ""), code[0]) for each in found if each)
    return Reply(451 if code == "421" else int(code), tuple(texts))  # 421 would end the session


def _with_code(text: str, kind: str) -> str:
    """Return a text of a reply with an enhanced code, that of a policy where it has none."""
    has_code = re.match(rf"{kind}\.[0-9]{{1,3}}\.[0-9]{{1,3}}(?: |$)", text)
    return (text if has_code else f"{kind}.7.1 {text}")[:MAX_TEXT]


def fields_and_body(content: bytes) -> tuple[list[bytes], bytes]:
    """Return the fields of the header, without their CRLF, and what stands behind the blank line.
    A line that belongs to no field ends the header, as Sendmail and Postfix have it for milters."""
    end = 0 if content.startswith(b"\r\n") else content.find(b"\r\n\r\n", 0, MAX_HEADER) + 2
    if end == 1:
        end = min(len(content), MAX_HEADER)
    fields, at = list[bytes](), 0
    for octets in _FOLDED.split(content[:end]):
        if not _FIELD.match(octets):
            break
        fields.append(octets)
        at += len(octets) + 2
    return fields, content[at:].removeprefix(b"\r\n")


def field_name(octets: bytes) -> bytes:
    """Return the name of a field."""
    return octets.partition(b":")[0].rstrip(b" \t")


def applied(mail: FilteredMail, decision: FilterDecision) -> FilteredMail:
    """Return the mail as a filter wants it. Raises: FilterFailed."""
    added, removed = decision.add_recipients, decision.remove_recipients
    if any(isinstance(each, str) for each in (decision.headers, added, removed)):
        raise FilterFailed("it gives a text for several")
    removals = sum(each.action == "remove" for each in decision.headers)
    check_number(len(decision.headers) - removals, removals)
    check_number(len(added), len(removed))
    content = mail.content
    if decision.headers or decision.body is not None:
        fields, body = fields_and_body(content)
        if decision.headers:
            header = _Header(fields)
            for change in decision.headers:
                header.change(change)
            fields = header.fields()
        if decision.body is not None:
            body = with_crlf(decision.body)
            if b"\0" in body:
                raise FilterFailed("its body has a NUL octet")
            if _has_long_lines(body) and not _has_long_lines(content):  # an intake may take them
                raise FilterFailed("its body has a line that is too long")
        octets = b"".join(each + b"\r\n" for each in fields)
        if len(octets) > MAX_HEADER:
            raise FilterFailed(f"its header has more than {MAX_HEADER} octets")
        if sum(each[:9].lower() == b"received:" for each in fields) >= MAX_RECEIVED_FIELDS:
            raise FilterFailed("its header is that of a mail that goes round in circles")
        content = b"".join((octets, b"\r\n", body))
    sender = mail.sender
    if decision.sender is not None:
        sender = _mailbox(decision.sender) if decision.sender else None
    recipients = mail.recipients
    if decision.add_recipients or decision.remove_recipients:
        recipients = _recipients(recipients, decision)
    return replace(mail, content=content, sender=sender, recipients=recipients)


def check_number(changes: int, removals: int) -> None:
    """Raises: FilterFailed, where a filter makes more of them than it may."""
    if changes > MAX_CHANGES or removals > MAX_REMOVALS:
        raise FilterFailed(f"it makes more than {MAX_CHANGES} changes or {MAX_REMOVALS} removals")


def _has_long_lines(content: bytes) -> bool:
    meter = LineMeter()
    meter.feed(content)
    meter.end()
    return meter.longest > 0


def _recipients(standing: Iterable[str], decision: FilterDecision) -> tuple[str, ...]:
    removed = {each.lower() for each in decision.remove_recipients}
    kept = [each for each in standing if each.lower() not in removed]
    found = tuple(dict.fromkeys((*kept, *map(_mailbox, decision.add_recipients))))
    if not found:
        raise FilterFailed("it removes all recipients")
    return found


def _mailbox(address: str) -> str:
    try:
        check_mailbox(address)
    except InvalidInput:
        raise FilterFailed("it names an address that is none") from None
    if "@" not in address:
        raise FilterFailed("it names an address without a domain")
    return address


class _Header:
    """The fields of a header. Each is a list that holds its octets, and is empty once the field is
    removed; those with one name are found without a look at the others, since a header may have
    thousands, and a filter change as many."""

    def __init__(self, fields: Iterable[bytes]) -> None:
        self._fields = [[each] for each in fields]
        self._named = defaultdict[bytes, list[list[bytes]]](list)
        for each in self._fields:
            self._named[field_name(each[0]).lower()].append(each)

    def fields(self) -> list[bytes]:
        """Return the octets of all fields, in order."""
        return [each[0] for each in self._fields if each]

    def change(self, change: HeaderChange) -> None:
        """Make a change. Raises: FilterFailed."""
        place = max(0, change.index - 1)
        named = self._named[change.name.lower().encode("utf-8", "surrogateescape")]
        is_there = place < len(named)
        if change.action == "insert":
            self._insert(place, [_field(change)], named)
        elif change.action == "remove":
            if is_there:
                named.pop(place).clear()
        elif change.action == "change" and is_there:
            named[place][0] = _field(change)
        elif change.action in ("add", "change"):
            self._fields.append([_field(change)])
            named.append(self._fields[-1])
        else:
            raise FilterFailed("it changes a field in a way that there is not")

    def _insert(self, place: int, field_: list[bytes], named: list[list[bytes]]) -> None:
        self._fields = [each for each in self._fields if each]
        before = {id(each) for each in self._fields[:place]}
        self._fields.insert(place, field_)
        named.insert(sum(id(each) in before for each in named), field_)


def _field(change: HeaderChange) -> bytes:
    if not _NAME.fullmatch(change.name):
        raise FilterFailed("it names a field that is none")
    lines = change.value.replace("\r\n", "\n").rstrip("\n").split("\n")
    lines[0] = f"{change.name}:{'' if lines[0][:1] in (' ', chr(9)) else ' '}{lines[0]}"
    octets = [each.encode("utf-8", "surrogateescape") for each in lines]
    text = b"\r\n".join(octets)
    if re.search(rb"[\x00\r]", b"".join(octets)) or any(
        not each.startswith((b" ", b"\t")) or not each.strip() for each in octets[1:]
    ):
        raise FilterFailed("it makes a field that would be more than one")
    if max(map(len, octets)) > MAX_LINE:
        raise FilterFailed("it makes a line that is too long")
    return text
