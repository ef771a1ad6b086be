"""Why a next hop did not take a mail: the class of its reply, and its words without what names a
person, a host or a mail. Pure.

The enhanced status code decides where it names one reason. Servers use others for anything (x.2.1,
x.4.1, x.7.1, those that end in 0): there the words decide, then the subject of the enhanced code,
then the basic code. A table, so that a reply is read once and its class is stored with the attempt:
a later reader counts classes, not texts.
Source: RFC 3463 3; RFC 7372; RFC 7505; ADR 0033.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

LONGEST_WORDS = 100
"""Characters that are kept of a reply's words."""

LONGEST_READ = 500
"""Characters of a text that are looked at: as many as a relay's outcomes have."""


class BounceClass(StrEnum):
    """The reason of a refusal. The values are stored."""

    NO_MAILBOX = "no-mailbox"
    NO_DOMAIN = "no-domain"
    MAILBOX_FULL = "mailbox-full"
    MAILBOX_UNAVAILABLE = "mailbox-unavailable"
    TOO_LARGE = "too-large"
    SENDER = "sender"
    RELAYING = "relaying"
    AUTHENTICATION = "authentication"
    BLOCKED = "blocked"
    CONTENT = "content"
    POLICY = "policy"
    GREYLISTED = "greylisted"
    RATE = "rate"
    SECURITY = "security"
    UNREACHABLE = "unreachable"
    SYSTEM = "system"
    LOOP = "loop"
    PROTOCOL = "protocol"
    SUPPRESSED = "suppressed"
    OTHER = "other"

    @classmethod
    def known(cls, value: str) -> BounceClass:
        """Return the class of a stored value; `OTHER` for one of a later release."""
        try:
            return cls(value)
        except ValueError:
            return cls.OTHER


class Bounce(NamedTuple):
    """A reply as it is counted. `code` is the basic code, 0 where the text has none."""

    code: int
    reason: BounceClass
    words: str


_B = BounceClass
_REPLY = re.compile(r"(?:([2-5]\d\d)(?![^\s-]))?[ -]?(?:([245])\.(\d{1,3})\.(\d{1,3})(?!\S))?")
"""Matches the beginning of any text, with nothing in its groups where there is no code."""


_BY_CODE: dict[tuple[int, int], BounceClass] = {
    **dict.fromkeys(((1, 1), (1, 3), (1, 4), (1, 6), (7, 17), (7, 18), (7, 19)), _B.NO_MAILBOX),
    **dict.fromkeys(((1, 2), (1, 10)), _B.NO_DOMAIN),
    **dict.fromkeys(((1, 7), (1, 8), (7, 27)), _B.SENDER),
    **dict.fromkeys(((2, 2),), _B.MAILBOX_FULL),
    **dict.fromkeys(((2, 4), (7, 13)), _B.MAILBOX_UNAVAILABLE),
    **dict.fromkeys(((2, 3), (3, 4), (7, 16)), _B.TOO_LARGE),
    **dict.fromkeys(((3, 1), (3, 3), (3, 5), (4, 3), (4, 5)), _B.SYSTEM),
    **dict.fromkeys(((4, 2), (4, 4), (4, 7)), _B.UNREACHABLE),
    **dict.fromkeys(((4, 6),), _B.LOOP),
    **dict.fromkeys(((5, 1), (5, 2), (5, 4), (5, 5), (5, 6)), _B.PROTOCOL),
    **dict.fromkeys(((5, 3), (7, 15), (7, 28)), _B.RATE),
    **dict.fromkeys(((6, detail) for detail in range(1, 11)), _B.CONTENT),
    **dict.fromkeys(((7, detail) for detail in (*range(4, 13), 14, 30)), _B.SECURITY),
    **dict.fromkeys(((7, detail) for detail in (*range(20, 27), 29)), _B.AUTHENTICATION),
}
"""Subject and detail that name one reason."""

_BY_SUBJECT = {
    1: _B.NO_MAILBOX,
    2: _B.MAILBOX_UNAVAILABLE,
    3: _B.SYSTEM,
    4: _B.UNREACHABLE,
    5: _B.PROTOCOL,
    6: _B.CONTENT,
    7: _B.POLICY,
}
"""Where neither the detail nor the words decide."""

_BY_BASIC_CODE = {
    **dict.fromkeys((421, 451, 452), _B.SYSTEM),
    **dict.fromkeys((450,), _B.MAILBOX_UNAVAILABLE),
    **dict.fromkeys((454, 530, 534, 535, 538), _B.SECURITY),
    **dict.fromkeys((500, 501, 502, 503, 504, 555), _B.PROTOCOL),
    **dict.fromkeys((521, 556), _B.NO_DOMAIN),
    **dict.fromkeys((551,), _B.NO_MAILBOX),
    **dict.fromkeys((552,), _B.MAILBOX_FULL),
}
"""Where there is nothing else. 550, 553 and 554 mean anything."""

_WHO = r"(?:user|recipient|mailbox|address|account|person|addressee)"

_UNKNOWN = (
    rf"(?:(?:unknown|no such|invalid|non-?existent|unrouteable) {_WHO}"
    rf"|{_WHO}\b.{{0,40}}(?:unknown|not found|not exist|n't exist|invalid|not known)"
    rf"|(?:not a (?:valid|known)|no) {_WHO}\b)"
)

_FROM = r"\b(?:sender|envelope.from|(?:return|reverse).path)\b"

_BY_WORDS = tuple(
    (reason, re.compile("|".join(patterns), re.IGNORECASE))
    for reason, *patterns in (
        (_B.SUPPRESSED, r"suppression list"),
        (_B.GREYLISTED, r"gr[ea]y-?\s?list"),
        (_B.MAILBOX_FULL, r"\bover-?quota\b", r"\bquota\b", r"box (?:is )?full\b", r"\bstorage\b"),
        (
            _B.TOO_LARGE,
            r"too (?:large|big)",
            r"\bsize\b.{0,20}(?:exceed|limit)",
            r"exceed.{0,30}\bsize",
        ),
        # Before NO_MAILBOX, which may put a recipient on the suppression list.
        (_B.SENDER, rf"\A(?=.*{_FROM}).*{_UNKNOWN}"),
        (_B.RELAYING, r"relay"),
        (_B.NO_MAILBOX, _UNKNOWN, r"recipient (?:address )?rejected"),
        (
            _B.MAILBOX_UNAVAILABLE,
            rf"{_WHO}\b.{{0,30}}(?:disabled|suspended|inactive|closed|locked|deactivated)",
            rf"{_WHO}\b.{{0,30}}(?:unavailable|not available)",
        ),
        (_B.NO_DOMAIN, r"(?:domain|host)\b.{0,30}(?:not found|not exist|unknown)"),
        (
            _B.AUTHENTICATION,
            r"\b(?:spf|dkim|dmarc|ptr|reverse dns|unauthenticated|not authenticated)\b",
        ),
        (_B.LOOP, r"\b(?:loop|too many hops)"),
        (
            _B.RATE,
            r"too (?:many|fast|quick|much)",
            r"unexpected volume|limits? (?:for|on) how many",
            r"rate.?limit",
            r"throttl",
            r"slow down",
            r"\brate\b",
        ),
        (
            _B.BLOCKED,
            r"(?:block|black|deny) ?list",
            r"\b(?:dns)?[dr]?bl\b",
            r"blocked|banned|reputation",
            r"listed (?:by|at|in|on)\b",
        ),
        (_B.CONTENT, r"spam|virus|malware|phish|unsolicited|junk|attachment", r"\bcontent\b"),
        (
            _B.SECURITY,
            r"starttls|\btls\b|encrypt|certificate",
            r"must authenticate",
            r"auth\w* required",
        ),
        (
            _B.SENDER,
            r"sender\b.{0,40}(?:reject|refus|denied|invalid|verif)",
            r"(?:invalid|bad) sender",
        ),
        (
            _B.UNREACHABLE,
            r"connection (?:lost|refused|timed|reset)",
            r"time(?:d )?-?out",
            r"no route|unreachable|cannot connect",
        ),
        (_B.POLICY, r"polic(?:y|ies)|not authori[sz]ed|prohibited|access denied"),
        (_B.SYSTEM, r"busy|overload|shutting down|(?:not |un)available|temporar"),
    )
)
"""The first row that fits decides."""

_ENCLOSED = re.compile(
    r"(?P<address><[^<>]*>|\"[^\"]*\"@\S+)"
    r"|(?P<name>(?<!\w)'[^']*'(?!\w)|\"[^\"]*\")"
    r"|(?P<host>\[[^\[\]]*\])"
)
_DOTTED = re.compile(r"\w\.\w")
_DIGIT = re.compile(r"\d")


def bounce_of(text: str, addresses: Iterable[str | None] = ()) -> Bounce:
    """Return how a refusal is counted, by the text of its outcome. `addresses` are those that the
    next hop may have quoted.

    >>> bounce_of("550 5.1.1 <b@example.net>: no such user on mx7.example.net").words
    '<address>: no such user on <host>'
    """
    text = _plain(text)
    found = _REPLY.match(text)
    assert found is not None
    words = masked(text[found.end() :], addresses)
    return Bounce(int(found[1] or 0), _reason(found, words), words[:LONGEST_WORDS].rstrip())


def code_of(text: str) -> int:
    """Return the basic code of a reply, 0 where the text has none."""
    return int(text[:3]) if text[:1] in tuple("2345") and re.match(r"\d{3}(?!\d)", text) else 0


def masked(text: str, addresses: Iterable[str | None] = ()) -> str:
    """Return the words of a reply with marks in place of addresses, quoted names, hosts and
    numbers, and of the local parts of `addresses` wherever they stand. Takes time in proportion to
    the text: the next hop chose it."""
    for address in addresses:
        local = (address or "").rpartition("@")[0].strip('"')
        if local:
            own = rf"<?(?<![^\W_]){re.escape(local)}(?![^\W_])(?:@[^\s<>\"]+)?>?"
            text = re.sub(own, "<address>", text, flags=re.IGNORECASE)
    enclosed = _ENCLOSED.sub(lambda found: f"<{found.lastgroup}>", text)
    return " ".join(_marked(word) for word in enclosed.split())


def _marked(word: str) -> str:
    """Return a word, or what stands for it."""
    if "@" in word:
        return "<address>"
    if "://" in word or _DOTTED.search(word):
        return "<host>"
    return "#" if _DIGIT.search(word) else word


def _reason(found: re.Match[str], words: str) -> BounceClass:
    basic, first = found[1], found[2]
    subject = detail = None
    if first is not None and (basic is None or basic[0] == first):
        subject, detail = int(found[3]), int(found[4])
        if (subject, detail) in _BY_CODE:
            return _BY_CODE[subject, detail]
    for reason, pattern in _BY_WORDS:
        if pattern.search(words):
            return reason
    if subject in _BY_SUBJECT:
        return _BY_SUBJECT[subject]
    return _BY_BASIC_CODE.get(int(basic or 0), BounceClass.OTHER)


def _plain(text: str) -> str:
    """Return a text on one line, printable and short enough to search it."""
    text = text[:LONGEST_READ]
    if not text.isprintable():  # nor has it half a surrogate, which no UTF-8 holds
        text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())
