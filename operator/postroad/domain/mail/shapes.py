"""Traits of the content of a mail: found in one pass at acceptance, and kept with the mail.

The relay needs it before MAIL (the size as sent, 8BITMIME) and while it sends: a content without
leading dots and with CRLF alone is sent as it is. Each octet is read a bounded number of times, by
functions that run at C speed; the nesting of MIME parts is not read, because a sender could make
that expensive. Pure. Source: SP-3; RFC 5321 2.3.8, 4.5.2, 4.5.3.1.6; ADR 0027."""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import IncrementalNewlineDecoder

from postroad.domain.values.frozen import value

MAX_HEADER = 256 * 1024
"""Octets; without a blank line within them the whole content counts as header."""

MAX_RECEIVED_FIELDS = 100
"""`Received:` fields of a mail that counts as looping. Source: RFC 5321 6.3."""

MAX_LINE = 998
"""Octets of a line without its end. Source: RFC 5321 4.5.3.1.6."""

MAX_CONTINUATION = MAX_LINE - 1
"""Octets of each further piece of a longer line, behind the space that it begins with."""

FOLD = b"\r\n "
"""Separator that stands between the pieces of a longer line, as Postfix sends them."""

_CRLF = b"\r\n"
_BLANK_LINE = re.compile(rb"\n\r?\n")  # begins with a literal: a tenth of the time of `\r?\n\r?\n`
_LEADING_DOT = re.compile(rb"\n\.")  # a third of the time of `find`, which has no memchr for pairs
_BARE = re.compile(rb"\r(?!\n)|(?<!\r)\n")
_VERSION = "2"


def has_bare_line_ends(data: bytes) -> bool:
    """Return whether there is a CR without LF or an LF without CR. This decoder notes the kinds of
    line ends that it sees, in one pass and a third of the time that it takes to count them."""
    seen = IncrementalNewlineDecoder(None, translate=False)
    seen.decode(data.decode("latin-1"), final=True)
    return seen.newlines not in (None, "\r\n")


def with_crlf(data: bytes) -> bytes:
    """Return the octets with a CRLF for each bare CR and LF."""
    return _BARE.sub(_CRLF, data)


@value
class Shape:
    """`header_size` counts the octets up to and including the blank line that ends the header; the
    whole size where there is none within MAX_HEADER. `longest_line` is 0 where no line is longer
    than MAX_LINE; `folds` is how often such lines are folded in all. `is_terminated`: the last line
    has an end, or there is none."""

    header_size: int
    has_8bit_header: bool = False
    has_8bit_body: bool = False
    has_leading_dots: bool = False
    bare_line_ends: int = 0
    longest_line: int = 0
    folds: int = 0
    is_terminated: bool = True
    has_nul: bool = False

    @property
    def has_8bit(self) -> bool:
        """True if any octet is above 127."""
        return self.has_8bit_header or self.has_8bit_body

    @property
    def is_sent_as_is(self) -> bool:
        """True if the octets behind DATA are those of the content, long lines apart."""
        return not self.has_leading_dots and not self.bare_line_ends

    def sent_size(self, size_bytes: int, *, folds: bool) -> int:
        """Return the octets of a content of `size_bytes` as it is sent: with CRLF at the end of
        each line and, with `folds`, longer lines folded; dots that are doubled for transparency do
        not count. Source: RFC 1870 3, 6.1."""
        unended = 0 if self.is_terminated else len(_CRLF)
        return size_bytes + self.bare_line_ends + unended + folds * self.folds * len(FOLD)

    def as_text(self) -> str:
        """Return it as rows and references keep it."""
        # `astuple` would copy each of them, which takes longer than all else.
        return " ".join(
            (_VERSION, *(str(int(getattr(self, each))) for each in self.__match_args__))
        )

    @classmethod
    def from_text(cls, text: str) -> Shape | None:
        """Read what `as_text` wrote; None for what another release, or another program, wrote."""
        version, *words = text.split(" ")
        if version != _VERSION or len(words) != _FIELDS:
            return None
        if not all(word.isascii() and word.isdecimal() and len(word) < 20 for word in words):
            return None
        size, header, body, dots, bare, longest, folds, terminated, nul = map(int, words)
        flags = bool(header), bool(body), bool(dots)
        return cls(size, *flags, bare, longest, folds, bool(terminated), bool(nul))


_FIELDS = len(Shape.__match_args__)


class LineMeter:
    """Measures lines that end by LF or CRLF. It looks only where a line must have ended, so it goes
    through ordinary text in steps of about MAX_LINE octets, not line by line."""

    def __init__(self) -> None:
        self.longest = 0
        self.folds = 0
        self._begun = 0
        """Octets of the line that has not ended yet."""

    def feed(self, data: bytes) -> None:
        """Take the next octets, not cut between CR and LF."""
        end = data.find(b"\n")
        if end < 0:
            self._begun += len(data)
            return
        self._note(self._begun + end - data.endswith(b"\r", 0, end))
        at, size = end + 1, len(data)
        while size - at > MAX_LINE:
            end = data.rfind(b"\n", at, at + MAX_LINE + 1)
            if end < 0:
                end = data.find(b"\n", at + MAX_LINE + 1)
                if end < 0:
                    break
                self._note(end - at - data.endswith(b"\r", at, end))
            at = end + 1
        self._begun = size - 1 - data.rfind(b"\n", at - 1)

    def end(self) -> None:
        """Take note that there are no more octets."""
        self._note(self._begun)

    def _note(self, length: int) -> None:
        if length > MAX_LINE:
            self.longest = max(self.longest, length)
            self.folds += -(-(length - MAX_LINE) // MAX_CONTINUATION)


def shape_of(chunks: Iterable[bytes]) -> Shape:
    """Return the shape of a content that is at hand."""
    scanner = Scanner()
    for chunk in chunks:
        scanner.feed(chunk)
    return scanner.end()


class Scanner:
    """Finds the shape of a content that comes in chunks of any size."""

    def __init__(self) -> None:
        self._size = 0
        self._held = b""
        """A CR at the end of what came: the next chunk says whether it is bare."""
        self._header_size: int | None = None
        self._before = b"\n"
        """The last octets before, in which a blank line may begin: as the first line may be."""
        self._is_at_line_start = True
        self._has_8bit_header = self._has_8bit_body = self._has_dots = False
        self._has_nul = False
        self._bare = 0
        self._lines = LineMeter()

    def feed(self, chunk: bytes) -> None:
        """Take the next octets."""
        if self._held:
            chunk = self._held + chunk
        self._held = b"\r" if chunk.endswith(b"\r") else b""
        if self._held:
            chunk = chunk[:-1]
        if chunk:
            self._look(chunk)

    def end(self) -> Shape:
        """Return what was found; nothing may be fed any more."""
        if self._held:
            self._look(self._held)
        self._lines.end()
        size = self._size if self._header_size is None else self._header_size
        return Shape(
            header_size=size,
            has_8bit_header=self._has_8bit_header,
            has_8bit_body=self._has_8bit_body,
            has_leading_dots=self._has_dots,
            bare_line_ends=self._bare,
            longest_line=self._lines.longest,
            folds=self._lines.folds,
            is_terminated=self._is_at_line_start,
            has_nul=self._has_nul,
        )

    def _look(self, data: bytes) -> None:
        header = self._header_in(data)
        if not data.isascii():
            self._has_8bit_header |= not data[:header].isascii()
            self._has_8bit_body |= not data[header:].isascii()
        self._size += len(data)
        self._has_nul = self._has_nul or b"\0" in data
        if has_bare_line_ends(data):
            returns, pairs = data.count(b"\r"), data.count(_CRLF)
            self._bare += data.count(b"\n") + returns - 2 * pairs
            if returns > pairs:
                data = with_crlf(data)  # lines as they will be sent
        if not self._has_dots:
            first = self._is_at_line_start and data.startswith(b".")
            self._has_dots = first or _LEADING_DOT.search(data) is not None
        self._is_at_line_start = data.endswith(b"\n")
        self._lines.feed(data)

    def _header_in(self, data: bytes) -> int:
        """Return how many of these octets belong to the header."""
        if self._header_size is not None:
            return 0
        before = self._before
        if self._size >= MAX_HEADER:
            return len(data)
        end = MAX_HEADER - self._size
        seen = before + data[: min(2, end)]  # alone: a sum with the whole chunk copies it
        if (found := _BLANK_LINE.search(seen)) is not None:
            header = found.end() - len(before)
        elif (found := _BLANK_LINE.search(data, 0, end)) is not None:
            header = found.end()
        else:
            self._before = (before + data[-3:])[-3:]
            return len(data)
        self._header_size = self._size + header
        return header
