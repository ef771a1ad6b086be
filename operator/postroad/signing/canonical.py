"""The forms over which DKIM computes digests, so that what relays change on the way breaks no
signature. Source: RFC 6376 3.4.

No regular expression is in it: over ordinary text, replacing by octets is several times as fast.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

_CRLF = b"\r\n"
_BLANKS = b" \t"


class Canonical(StrEnum):
    """A form of headers or of bodies. `RELAXED` passes over blanks and case."""

    RELAXED = "relaxed"
    SIMPLE = "simple"


def canonical_field(form: Canonical, field: bytes) -> bytes:
    """Return a field of a header, given without the CRLF at its end, in this form and without it.

    >>> canonical_field(Canonical.RELAXED, b"Subject :  a\\r\\n\\tb ")
    b'subject:a b'
    """
    if form is Canonical.SIMPLE:
        return field
    name, _, value = field.partition(b":")
    unfolded = _with_single_blanks(value.replace(_CRLF, b""))
    return name.rstrip(_BLANKS).lower() + b":" + unfolded.strip(b" ")


class BodyDigest:
    """The digest of a body that comes in chunks of any size, with CRLF at the end of each line.

    What may change with what follows it is held back as two numbers, so a body of blanks costs no
    memory.
    """

    def __init__(self, form: Canonical) -> None:
        self._is_relaxed = form is Canonical.RELAXED
        self._held_back = b" \t\r\n" if self._is_relaxed else _CRLF
        self._hash = hashlib.sha256()
        self._breaks = 0
        """Line breaks that have not come to text yet."""
        self._has_blank = False
        """Whether a blank stands behind them."""
        self._held_cr = False
        self._is_empty = True

    def feed(self, chunk: bytes) -> None:
        """Take the next octets."""
        if self._held_cr:
            chunk = b"\r" + chunk
        self._held_cr = chunk.endswith(b"\r")
        if self._held_cr:
            chunk = chunk[:-1]
        text = chunk.rstrip(self._held_back)
        if text:
            self._take(text)
        self._hold(chunk[len(text) :])

    def end(self) -> bytes:
        """Return the digest; nothing may be fed any more. Source: RFC 6376 3.4.3, 3.4.4."""
        if not (self._is_relaxed and self._is_empty):
            self._hash.update(_CRLF)
        return self._hash.digest()

    def _take(self, text: bytes) -> None:
        if self._has_blank:
            text = b" " + text
        if self._breaks:
            self._hash.update(_CRLF * self._breaks)
        self._breaks, self._has_blank, self._is_empty = 0, False, False
        if self._is_relaxed:
            text = _with_single_blanks(text).replace(b" \r\n", _CRLF)
        self._hash.update(text)

    def _hold(self, rest: bytes) -> None:
        if breaks := rest.count(_CRLF):
            self._breaks += breaks
            self._has_blank = False
        self._has_blank |= rest.endswith((b" ", b"\t"))


def _with_single_blanks(octets: bytes) -> bytes:
    """Return the octets with a space for each run of blanks. A run halves with each pass."""
    if b"\t" in octets:
        octets = octets.replace(b"\t", b" ")
    while b"  " in octets:
        octets = octets.replace(b"  ", b" ")
    return octets
