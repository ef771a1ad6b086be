"""The addresses that a field of a header names, such as From and To, and reverse-paths that name
the recipient (VERP), so that a report that comes back tells whom it is about. Pure.

Fields are read strictly, because each address that is found gets mail, or gives the domain that
signs it: text that one reader takes for an address and another for a name is refused
(CVE-2023-27043). Allowed beside RFC 5322 is what names the same addresses for every reader: `;`
between them, a last `>` or `)` that is missing. Not the standard library's reader, because its
answers differ between patch releases. Reverse-paths have the form of Postfix with its usual
delimiters, `+` and `=`.
Source: RFC 5322 3.4, 4.4; RFC 6532 3.2 (UTF-8); Bernstein, Variable Envelope Return Paths;
Postfix documentation, VERP_README; RFC 5321 4.1.2, 4.5.3.1; ADR 0071."""

import re

from postroad.domain.mail.seven_bits import ascii_address
from postroad.errors import InvalidInput

_SPACE = r"[ \t\r\n]*+"
_ATOM = r"[^\x00-\x20\x7f()<>\[\]:;@\\,.\"]++"
_QUOTED = r"\"(?:[^\"\\]|\\.)*+\""
_DOTTED = rf"{_ATOM}(?:{_SPACE}\.{_SPACE}{_ATOM})*+"
_PHRASE = rf"(?:(?:{_QUOTED}|{_ATOM}|\.){_SPACE})"
_BETWEEN = re.compile(rf"(?:[ \t\r\n,;]|{_PHRASE}++:)*+")
"""Separators, and the names that groups begin with."""
_MAILBOX = re.compile(
    rf"(?P<opened>{_PHRASE}*+<{_SPACE}(?:@[^:<>]*+:{_SPACE})?)?"  # with a source route (4.4)
    rf"(?P<local>{_QUOTED}|{_DOTTED}){_SPACE}@{_SPACE}(?P<domain>\[[^\[\]\\]*+\]|{_DOTTED})"
    rf"{_SPACE}(?P<closed>>)?{_SPACE}",
    re.DOTALL,
)
_BLANKS = re.compile(r"[ \t\r\n]+")


def addresses_in(value: str) -> list[str]:
    """Return the addresses in the value of a field, without names and comments. Raises:
    InvalidInput for text that is no address, and for octets that are no UTF-8."""
    text, found, at = _without_comments(value), [], 0
    while (at := _end_of(_BETWEEN.match(text, at))) < len(text):
        mailbox = _MAILBOX.match(text, at)
        if mailbox is None or not _may_end(mailbox, text[mailbox.end() : mailbox.end() + 1]):
            raise InvalidInput(f"{_shown(text[at:])} is no address, or hides one")
        local, domain = mailbox["local"], mailbox["domain"]
        local = local if local.startswith('"') else _BLANKS.sub("", local)
        found.append(f"{local}@{_BLANKS.sub('', domain)}")
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


MAX_LOCAL_PART, MAX_PATH = 64, 254
"""Octets; a path has 256 with its angle brackets. Source: RFC 5321 4.5.3.1.1, 4.5.3.1.3."""

_DOT_ATOM = r"[^\s\"()<>\[\]\\,;:@.\x00-\x20\x7f]+"
_DOT_STRING = re.compile(rf"{_DOT_ATOM}(?:\.{_DOT_ATOM})*")


def return_path(sender: str, recipient: str) -> str | None:
    """Return the reverse-path of a mail from a sender to one recipient; None: it would be too long,
    or one of the two has quotes or an address literal that cannot stand there.

    >>> return_path("bounces@list.example", "user@example.net")
    'bounces+user=example.net@list.example'
    """
    local, at, domain = sender.rpartition("@")
    user, _, host = ascii_address(recipient).rpartition("@")
    named = f"{user}={host}" if user else host  # postmaster has no domain
    extended = f"{local}+{named}"
    path = f"{extended}{at}{domain}"
    if not (local and _DOT_STRING.fullmatch(extended)):
        return None
    if len(extended.encode()) > MAX_LOCAL_PART or len(path.encode()) > MAX_PATH:
        return None
    return path
