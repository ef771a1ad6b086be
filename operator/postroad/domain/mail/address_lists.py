"""The fields of a header, as they stand in it, and the addresses that one names, such as From and
To. Pure.

The addresses are read strictly, because each that is found gets mail, or gives the domain that
signs it: text that one reader takes for an address and another for a name is refused
(CVE-2023-27043). Allowed beside RFC 5322 is what names the same addresses for every reader: `;`
between them, a last `>` or `)` that is missing. Not the standard library's reader, because its
answers differ between patch releases.
Source: RFC 5322 3.4, 4.4; RFC 6532 3.2 (UTF-8)."""

import re
from collections.abc import Iterable
from copy import copy
from io import BytesIO
from typing import Any, NamedTuple

from postroad.errors import InvalidInput, InvalidMail

_SPACE = r"[ \t\r\n]*+"
_ATOM = r"[^\x00-\x20\x7f()<>\[\]:;@\\,.\"]++"
_QUOTED = r"\"(?:[^\"\\]|\\.)*+\""
_DOTTED = rf"{_ATOM}(?:{_SPACE}\.{_SPACE}{_ATOM})*+"
_PHRASE = rf"(?:(?:{_QUOTED}|{_ATOM}|\.){_SPACE})"
_BETWEEN = re.compile(rf"(?:[ \t\r\n,;]|{_PHRASE}++:)*+")
"""Separators, and the names that groups begin with."""
_LOCAL = (
    rf"(?P<opened>{_PHRASE}*+<{_SPACE}(?:@[^:<>]*+:{_SPACE})?)?"  # with a source route (4.4)
    rf"(?P<local>{_QUOTED}|{_DOTTED}){_SPACE}"
)
_DOMAIN = rf"@{_SPACE}(?P<domain>\[[^\[\]\\]*+\]|{_DOTTED}){_SPACE}"
_CLOSED = rf"(?P<closed>>)?{_SPACE}"
_MAILBOX = re.compile(_LOCAL + _DOMAIN + _CLOSED, re.DOTALL)
_LOCAL_TOO = re.compile(f"{_LOCAL}(?:{_DOMAIN})?{_CLOSED}", re.DOTALL)
_BLANKS = re.compile(r"[ \t\r\n]+")


def addresses_in(value: str, *, local_too: bool = False) -> list[str]:
    """Return the addresses in the value of a field, without names and comments; with `local_too`
    also names of users without a domain. Raises: InvalidInput for text that is no address, and for
    octets that are no UTF-8."""
    pattern = _LOCAL_TOO if local_too else _MAILBOX
    text, found, at = _without_comments(value), [], 0
    while (at := _end_of(_BETWEEN.match(text, at))) < len(text):
        mailbox = pattern.match(text, at)
        if mailbox is None or not _may_end(mailbox, text[mailbox.end() : mailbox.end() + 1]):
            raise InvalidInput(f"{_shown(text[at:])} is no address, or hides one")
        local, domain = mailbox["local"], mailbox["domain"]
        local = local if local.startswith('"') else _BLANKS.sub("", local)
        found.append(local if domain is None else f"{local}@{_BLANKS.sub('', domain)}")
        if not found[-1].isprintable():  # surrogates stand for octets that are no UTF-8
            raise InvalidInput(f"{_shown(found[-1])} is not UTF-8, or holds a control character")
        at = mailbox.end()
    return found


def _may_end(mailbox: re.Match[str], following: str) -> bool:
    if mailbox["opened"] is None:
        return following in ("", ",", ";")
    return following in ("", ",", ";", "<") if mailbox["closed"] else not following


def _end_of(match: re.Match[str] | None) -> int:
    assert match is not None  # the empty text matches
    return match.end()


def _without_comments(value: str) -> str:
    kept: list[str] = []
    depth, is_quoted = 0, False
    characters = iter(value)
    for char in characters:
        text = char + next(characters, "") if char == "\\" else char
        if char == '"' and not depth:
            is_quoted = not is_quoted
        elif char in "()" and not is_quoted:
            depth += 1 if char == "(" else -1
            text = " "
        if depth < 0:
            raise InvalidInput("a ) closes no comment")
        kept.append(" " if depth else text)
    return "".join(kept)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else f"{text[:60]}…")


_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:")
_FOLDED = re.compile(rb"\r\n(?![ \t])")
_MESSAGE_ID = re.compile(rb"^message-id:[ \t\r\n]*(<[!-~]{1,250}>)[ \t\r]*$", re.I | re.M)

MAX_SEARCHED = 64 * 1024
"""Octets of a mail in which its Message-ID is looked for."""


class HeaderField(NamedTuple):
    """One field, without the CRLF at its end. `name` is in lower case."""

    name: str
    octets: bytes

    @property
    def value(self) -> str:
        """Text that stands behind the colon, unfolded."""
        value = self.octets.partition(b":")[2].replace(b"\r\n", b"")
        return value.decode("utf-8", "replace").strip()


def message_id_of(content: bytes) -> str | None:
    """Return the Message-ID of a mail, with its angle brackets, from its first octets; None: it has
    none in a form that RFC 5322 allows.

    >>> message_id_of(b"Subject: x\\r\\nMessage-ID:\\r\\n <1@a.example>\\r\\n\\r\\n")
    '<1@a.example>'
    """
    start = content[:MAX_SEARCHED]
    end = start.find(b"\r\n\r\n")
    found = _MESSAGE_ID.search(start, 0, len(start) if end < 0 else end + 2)
    return found[1].decode() if found else None


def fields_of(header: bytes) -> list[HeaderField]:
    """Return the fields of a header with CRLF at the end of each line, from the top; the blank line
    behind them may be there. Raises: InvalidMail for a line that belongs to no field, at which
    servers differ about where the header ends."""
    found = []
    for octets in _FOLDED.split(header):
        if octets:
            name = _FIELD.match(octets)
            if name is None:
                raise InvalidMail("a line of the header belongs to no field")
            found.append(HeaderField(name[1].decode().lower(), octets))
    return found


def octets_of(message: object, addresses: Iterable[str]) -> bytes | None:
    """Return an `EmailMessage` as SMTP sends it from and to these addresses: with CRLF, without
    Bcc, in UTF-8 where one of them needs it; None: it is none. Raises: InvalidMail for one that
    cannot be written."""
    from email.generator import BytesGenerator  # 10 ms, for those who hand one over
    from email.message import Message

    if not isinstance(message, Message):
        return None
    sent, written = copy(message), BytesIO()
    del sent["Bcc"], sent["Resent-Bcc"]
    needed: dict[str, Any] = {} if "".join(addresses).isascii() else {"utf8": True}
    try:
        policy = message.policy.clone(**needed)
        BytesGenerator(written, policy=policy).flatten(sent, linesep="\r\n")
    except Exception as error:  # whatever a payload of a wrong type meets
        raise InvalidMail(f"content: the message cannot be written: {error}") from error
    return written.getvalue()
