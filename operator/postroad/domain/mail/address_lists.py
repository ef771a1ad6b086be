"""The addresses that a field of a header names, such as From and To. Pure.

Strict, because each address that is found gets mail, or gives the domain that signs it: text that
one reader takes for an address and another for a name is refused (CVE-2023-27043). Allowed beside
RFC 5322 is what names the same addresses for every reader: `;` between them, a last `>` or `)` that
is missing. Not the standard library's reader, because its answers differ between patch releases.
Source: RFC 5322 3.4, 4.4; RFC 6532 3.2 (UTF-8)."""

import re

from postroad.errors import InvalidInput

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
