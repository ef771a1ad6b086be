"""The content of one mail on its way out, and what is known of it before MAIL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator

from postroad.domain.seven_bits import PIECE, Result, Steps, in_seven_bits, is_signed
from postroad.domain.shapes import LONGEST_HEADER, Scanner, Shape, shape_of, with_crlf

LARGEST_CONVERTED = 64 * 1024 * 1024
"""Octets of a mail that is converted to 7 bits: it is held whole for that."""


class Content:
    """The content of one mail whose beginning was looked at."""

    def __init__(
        self, first: bytes, rest: AsyncIterator[bytes], size_bytes: int, shape: Shape | None
    ) -> None:
        self.first = first
        """The beginning: the first chunk, empty for a mail without any."""
        self.shape = shape
        """None: a release that did not look has stored the mail, and it is too large to be held."""
        known = shape or shape_of((first[:LONGEST_HEADER],))
        header = first[: min(known.header_size, LONGEST_HEADER)]
        self.folds = (shape is None or shape.folds > 0) and not is_signed(header)
        """Whether longer lines are to be folded, where there are any. A signature would not survive
        it: signed mail goes as it is, and the next hop judges."""
        self._header, self._rest, self._size_bytes = header, rest, size_bytes
        self._converted: Content | None = None

    @classmethod
    async def peek(
        cls, chunks: AsyncIterator[bytes], size_bytes: int, shape: Shape | None = None
    ) -> Content:
        """Read the first chunk, and find the shape of a content that is no longer, where acceptance
        did not. Raises: whatever the chunks raise."""
        first = await anext(chunks, b"")
        if shape is None and len(first) >= size_bytes:
            shape = shape_of((first,))
        return cls(first, chunks, size_bytes, shape)

    @property
    def may_have_8bit(self) -> bool:
        """Whether there are octets above 127, for all that is known."""
        return self.shape is None or self.shape.has_8bit

    @property
    def has_8bit_header(self) -> bool:
        """Whether the header holds octets above 127."""
        return not self._header.isascii() if self.shape is None else self.shape.has_8bit_header

    @property
    def sent_size(self) -> int:
        """The octets as RFC 1870 counts them; as stored, where the shape is not known."""
        if self.shape is None:
            return self._size_bytes
        return self.shape.sent_size(self._size_bytes, folds=self.folds)

    @property
    def is_held(self) -> bool:
        """Whether all of it is in memory."""
        return len(self.first) >= self._size_bytes

    async def more(self) -> bytes | None:
        """Return the next chunk after the beginning; None at the end. Raises: what reading it
        raises."""
        return await anext(self._rest, None)

    async def in_seven_bits(self) -> Content:
        """Return the content as a next hop without 8BITMIME takes it; as it is, where it cannot be
        converted. It is held whole from then on. Raises: what reading it raises."""
        if self._size_bytes > LARGEST_CONVERTED:
            return self
        if self._converted is None:
            self._converted = await self._convert()
        return self._converted

    async def _convert(self) -> Content:
        """In steps, between which other mails go on: a conversion of the whole would hold the event
        loop for seconds, and in a thread the interpreter."""
        whole = bytearray()
        chunk: bytes | None = self.first
        while chunk is not None:
            whole += chunk
            chunk = await self.more()
        self._rest = _each(_cut(whole, len(self.first)))
        if self.shape is None:
            self.shape = await _shape_of(_cut(whole))
        if not self.shape.has_8bit:
            return self
        pieces = await _stepwise(
            in_seven_bits(await _normalised(whole) if self.shape.bare_line_ends else whole)
        )
        if pieces is None:
            return self
        shape = await _shape_of(pieces)
        return Content(pieces[0], _each(pieces[1:]), sum(map(len, pieces)), shape)


def _cut(octets: bytearray, start: int = 0) -> Iterator[bytes]:
    for at in range(start, len(octets), PIECE):
        yield bytes(octets[at : at + PIECE])


async def _each(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def _stepwise(steps: Steps[Result]) -> Result:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        await asyncio.sleep(0)


async def _shape_of(pieces: Iterable[bytes]) -> Shape:
    scanner = Scanner()
    for piece in pieces:
        scanner.feed(piece)
        await asyncio.sleep(0)
    return scanner.end()


async def _normalised(octets: bytearray) -> bytearray:
    result, held = bytearray(), b""
    for piece in _cut(octets):
        begun = held + piece
        held = b"\r" if begun.endswith(b"\r") else b""  # what follows says whether it is bare
        result += with_crlf(begun.removesuffix(held))
        await asyncio.sleep(0)
    return result + with_crlf(held)
