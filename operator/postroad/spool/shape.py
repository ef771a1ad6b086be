"""What a mail's content looks like, found once at acceptance. FORMAT.md 4. Pure.

Sending needs the lines that begin with a dot, routing and serving need where the parts of a MIME
message lie: both are kept with the envelope, so that nobody needs to scan the content again (SP-3).
The relay scans all the same: it also looks for bare line ends and for octets above 127, it serves
contents of both engines, and its scan is a sixtieth of what a mail of 10 kB costs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

LONGEST_HEADER = 256 * 1024
"""Bytes in which the blank line behind the header is looked for."""

MOST_DOTS = 4096
"""Lines beginning with a dot that are listed; with more, a sender scans."""

MOST_PARTS = 256
"""Parts of a MIME message that are listed."""

_BLANK = re.compile(rb"\r?\n\r?\n")
_CONTENT_TYPE = re.compile(rb"^content-type:[ \t]*((?:[^\r\n]|\r?\n[ \t])*)", re.I | re.M)
_BOUNDARY = re.compile(rb';\s*boundary\s*=\s*(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.I)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a MIME message: its media type, and where its header, body and end lie."""

    type: str
    header: int
    body: int
    end: int
    depth: int


@dataclass(frozen=True, slots=True)
class Shape:
    """`dots` are the offsets of lines beginning with a dot; None: too many to list."""

    header_size: int = 0
    dots: tuple[int, ...] | None = ()
    parts: tuple[Part, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return it as the envelope keeps it."""
        parts = [[each.type, each.header, each.body, each.end, each.depth] for each in self.parts]
        return {"dots": self.dots, "parts": parts}

    @classmethod
    def from_json(cls, header_size: int, found: dict[str, Any]) -> Shape:
        """Read what `as_json` wrote."""
        dots = found.get("dots")
        parts = tuple(Part(*each) for each in found.get("parts", ()))
        return cls(header_size, None if dots is None else tuple(dots), parts)


def header_size_of(content: bytes) -> int:
    """Return the bytes up to and including the blank line that ends the header; all when it has
    none within LONGEST_HEADER."""
    if content.startswith((b"\r\n", b"\n")):
        return content.index(b"\n") + 1
    found = _BLANK.search(content, 0, LONGEST_HEADER)
    return len(content) if found is None else found.end()


def shape_of(content: bytes) -> Shape:
    """Return the shape of a whole content."""
    dots, header_size = dots_in(content), header_size_of(content)
    parts: list[Part] = []
    if b"boundary" in content[: min(header_size, LONGEST_HEADER)].lower():
        _find_parts(content, 0, len(content), 0, parts)
    return Shape(header_size, dots, tuple(parts))


def dots_in(content: bytes) -> tuple[int, ...] | None:
    """Return the offsets of lines beginning with a dot; None when there are too many."""
    dots = [0] if content.startswith(b".") else []
    at = content.find(b"\n.")
    while at >= 0:
        if len(dots) == MOST_DOTS:
            return None
        dots.append(at + 1)
        at = content.find(b"\n.", at + 1)
    return tuple(dots)


def _find_parts(content: bytes, start: int, end: int, depth: int, parts: list[Part]) -> None:
    """Add the part at `start` and, if it is a multipart, those in it. Source: RFC 2046 5.1.1."""
    if len(parts) >= MOST_PARTS:
        return
    header = content[start:end]
    body = start + header_size_of(header)
    stated = _CONTENT_TYPE.search(content[start:body])
    value = stated.group(1) if stated else b"text/plain"
    media_type = value.split(b";")[0].strip().lower().decode("ascii", "replace")
    parts.append(Part(media_type, start, body, end, depth))
    boundary = _BOUNDARY.search(value)
    if boundary is None or not media_type.startswith("multipart/"):
        return
    name = re.escape(boundary.group(1) or boundary.group(2))
    line = re.compile(rb"(?:^|\r?\n)--" + name + rb"(--)?[ \t]*(?:\r?\n|$)")
    inner: int | None = None
    at = max(start, body - 1)  # the blank line's own break may begin the first boundary
    while (found := line.search(content, max(start, at), end)) is not None:
        if inner is not None:
            _find_parts(content, inner, found.start(), depth + 1, parts)
        if found.group(1):
            return
        inner = found.end()
        # The line break before a boundary belongs to it, and may also end the one before.
        at = found.end() - 1 if content[found.end() - 1 : found.end()] == b"\n" else found.end()
    if inner is not None:
        _find_parts(content, inner, end, depth + 1, parts)
