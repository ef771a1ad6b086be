"""SMTP replies: reading them, writing them, and what they mean for a recipient.

A reply is a three-digit code and one or more lines of text; the first text may begin with an
enhanced status code, which counts only when its class agrees with the code's first digit.
Source: RFC 5321 4.2; RFC 2034 4; RFC 3463 2."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from postroad.domain.mail.mail import Outcome
from postroad.domain.values.frozen import value
from postroad.errors import InvalidInput

_LINE = re.compile(rb"[\s\0]*([0-9]{3})(?![0-9])(-|[ \t]?)(.*)", re.DOTALL)
_ENHANCED = re.compile(r"([245])\.([0-9]{1,3})\.([0-9]{1,3})(?=\s|$)")

MAX_TEXT = 500
"""Characters of a reply that are kept in records and dead letters."""

_ABOUT_SENDER = frozenset((502, 503, 530, 534, 535, 538))

KEPT_LINES = 200
"""Lines of one reply whose text is kept. EHLO of the largest servers has 30."""

MAX_REPLY = 1024 * 1024
"""Octets of one reply before the peer is taken for broken: a reply to the end of a mail that is not
understood leads to a second copy, so a length that servers have does not make it wrong."""


@dataclass(frozen=True, slots=True)
class EnhancedCode:
    """Class, subject and detail. Source: RFC 3463 2."""

    kind: int
    subject: int
    detail: int

    def __str__(self) -> str:
        return f"{self.kind}.{self.subject}.{self.detail}"


_CREDENTIALS_INVALID = EnhancedCode(5, 7, 8)


@value
class Reply:
    """One reply. `str()` gives it on one line, printable, at most MAX_TEXT characters.

    >>> str(Reply(451, ("4.3.0 later", "please")))
    '451 4.3.0 later please'
    """

    code: int
    lines: tuple[str, ...] = ("",)
    is_unclear: bool = False
    """True if it is a peer's reply whose digits mean nothing, or not one thing, as 451 here."""

    _encoded: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        text = " ".join((str(self.code), *self.lines))
        if not text.isprintable():
            text = "".join(char if char.isprintable() else " " for char in text)
        return " ".join(text.split())[:MAX_TEXT]

    @property
    def is_positive(self) -> bool:
        return 200 <= self.code < 300

    @property
    def is_intermediate(self) -> bool:
        """True if the server waits for the rest (354)."""
        return 300 <= self.code < 400

    @property
    def is_permanent(self) -> bool:
        """True if the same command will never work."""
        return 500 <= self.code < 600

    @property
    def enhanced(self) -> EnhancedCode | None:
        """The enhanced status code, when there is one that agrees with the code."""
        found = _ENHANCED.match(self.lines[0])
        if found is None or int(found[1]) != self.code // 100:
            return None
        return EnhancedCode(int(found[1]), int(found[2]), int(found[3]))

    @property
    def is_about_sender(self) -> bool:
        """True if a refusal is about this side and not about the mail: missing authentication or
        encryption, a command out of order or unknown. A change of settings mends these, so they
        must never end a mail. Source: RFC 4954 6; RFC 5321 4.2.4; RFC 3463 3.8 (x.7.8)."""
        return self.code in _ABOUT_SENDER or self.enhanced == _CREDENTIALS_INVALID

    @property
    def is_too_many_recipients(self) -> bool:
        """True if a refused RCPT only means that a transaction takes no more recipients: any
        transient code or 552 with x.5.3, which OpenSMTPD sends as 451; 452 or 552 alone.
        Source: RFC 5321 4.5.3.1.10; RFC 3463 3.6."""
        enhanced = self.enhanced
        if enhanced is None:
            return self.code in (452, 552)
        is_named = (enhanced.subject, enhanced.detail) == (5, 3)
        return is_named and (enhanced.kind == 4 or self.code == 552)

    @property
    def refusal(self) -> Outcome:
        """The outcome of a negative reply for its recipients. Anything that is not a clear refusal
        defers, because mail must not be given up on a guess. Never `delivered`."""
        if self.is_permanent and not self.is_about_sender:
            return Outcome.failed(str(self))
        return Outcome.deferred(str(self))

    @property
    def recipient_refusal(self) -> Outcome:
        """The same for RCPT, where "too many recipients" defers although 552 is permanent."""
        return Outcome.deferred(str(self)) if self.is_too_many_recipients else self.refusal

    @property
    def final_outcome(self) -> Outcome:
        """The outcome of the reply to the end of a mail, the only one that may mean `delivered`."""
        return Outcome.delivered(str(self)) if self.is_positive else self.refusal

    def encode(self) -> bytes:
        """Return the reply as it is sent, every line ended by CRLF."""
        encoded = self._encoded
        if encoded is None:  # most replies are constants, sent a million times
            *first, last = self.lines
            lines = [*(f"{self.code}-{line}\r\n" for line in first), f"{self.code} {last}\r\n"]
            encoded = "".join(lines).encode()
            object.__setattr__(self, "_encoded", encoded)
        return encoded


class ReplyReader:
    """Joins the lines of replies. Feed it lines without their line end. The digits of a line
    decide, and nothing else: whatever the form of the text, a reply too many or too few is the only
    error, as it would shift all later ones. Source: RFC 5321 4.2."""

    def __init__(self) -> None:
        self._codes: dict[int, None] = {}
        """Those of the lines, each once."""
        self._lines: list[str] = []
        self._octets = 0

    def feed(self, line: bytes) -> Reply | None:
        """Take one line; return the reply that it completes. Raises: InvalidInput for a reply that
        begins without a code, or does not end."""
        if not self._octets and (reply := _whole(line)) is not None:
            return reply
        found = _LINE.match(line)
        if (
            self._octets
            and found
            and not (_is_meant(int(found[1])) or int(found[1]) in self._codes)
        ):
            found = None  # text that begins with a number
        if not (self._octets or found):
            raise InvalidInput("the server's line is not an SMTP reply")
        self._octets += len(line) + len(b"\r\n")
        if self._octets > MAX_REPLY:
            raise InvalidInput("the server's reply does not end")
        if len(self._lines) < KEPT_LINES:
            self._lines.append(_text_of(line if found is None else found[3]))
        if found is None:
            return None
        self._codes[int(found[1])] = None
        if found[2] == b"-":
            return None
        reply = _reply_of(self._codes, int(found[1]), self._lines)
        self._codes, self._lines, self._octets = {}, [], 0
        return reply


@lru_cache(maxsize=64)  # to most commands a server always gives the same reply
def _whole(line: bytes) -> Reply | None:
    """Return the reply that this line is; None: it is no reply, or one of several lines."""
    found = _LINE.match(line)
    if found is None or found[2] == b"-":
        return None
    return _reply_of((int(found[1]),), int(found[1]), (_text_of(found[3]),))


def _reply_of(codes: Collection[int], last: int, lines: Iterable[str]) -> Reply:
    """Return a reply whose lines have these codes: the last one is its code, where all are of one
    class. Otherwise it is neither a success nor a refusal for good."""
    if len({each // 100 for each in codes}) == 1 and _is_meant(last):
        return Reply(last, tuple(lines))
    given = " and ".join(map(str, codes))
    return Reply(451, (f"4.5.0 the next hop replied {given}:", *lines), is_unclear=True)


def _is_meant(code: int) -> bool:
    """True if a code is of one of the classes that replies have. Source: RFC 5321 4.2.1."""
    return 200 <= code < 600


def _text_of(text: bytes) -> str:
    return text.decode("utf-8", "replace")
