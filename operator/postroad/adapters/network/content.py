"""The content of one mail on its way out: its properties for MAIL, its conversion to 7 bits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator

from postroad.domain.seven_bits import PIECE, Result, Steps, in_seven_bits, is_signed
from postroad.domain.shapes import LONGEST_HEADER, Scanner, Shape, shape_of, with_crlf

LARGEST_CONVERTED = 64 * 1024 * 1024
"""Octets of a mail that is converted to 7 bits: the conversion holds the whole mail in memory."""


class OpenContent:
    """The content of one mail whose first chunk was read."""

    def __init__(
        self, first: bytes, rest: AsyncIterator[bytes], size_bytes: int, shape: Shape | None
    ) -> None:
        self.first = first
        """The first chunk, empty for an empty mail."""
        self.shape = shape
        """None: a release that did not record the shape stored the mail, and it is large."""
        known = shape or shape_of((first[:LONGEST_HEADER],))
        header = first[: min(known.header_size, LONGEST_HEADER)]
        self.folds = (shape is None or shape.folds > 0) and not is_signed(header)
        """Whether lines that are too long are folded. Signed mail goes unchanged, because folding
        would break the signature; the next hop decides."""
        self._header, self._rest, self._size_bytes = header, rest, size_bytes
        self._converted: OpenContent | None = None

    @classmethod
    async def peek(
        cls, chunks: AsyncIterator[bytes], size_bytes: int, shape: Shape | None = None
    ) -> OpenContent:
        """Read the first chunk. Where acceptance recorded no shape, find it if the chunk is the
        whole content. Raises: what the chunks raise."""
        first = await anext(chunks, b"")
        if shape is None and len(first) >= size_bytes:
            shape = shape_of((first,))
        return cls(first, chunks, size_bytes, shape)

    @property
    def may_have_8bit(self) -> bool:
        """Whether there are octets above 127; True where the shape is unknown."""
        return self.shape is None or self.shape.has_8bit

    @property
    def has_8bit_header(self) -> bool:
        """Whether the header holds octets above 127."""
        return not self._header.isascii() if self.shape is None else self.shape.has_8bit_header

    @property
    def sent_size(self) -> int:
        """The octets as RFC 1870 counts them; as stored, where the shape is unknown."""
        if self.shape is None:
            return self._size_bytes
        return self.shape.sent_size(self._size_bytes, folds=self.folds)

    @property
    def is_held(self) -> bool:
        """Whether the whole content is in memory."""
        return len(self.first) >= self._size_bytes

    async def more(self) -> bytes | None:
        """Return the next chunk after the first, None at the end. Raises: what the chunks raise."""
        return await anext(self._rest, None)

    async def in_seven_bits(self) -> OpenContent:
        """Return the content as a next hop without 8BITMIME accepts it; unchanged, if it cannot be
        converted. From then on it is in memory. Raises: what reading it raises."""
        if self._size_bytes > LARGEST_CONVERTED:
            return self
        if self._converted is None:
            self._converted = await self._convert()
        return self._converted

    async def _convert(self) -> OpenContent:
        """Converts in steps, between which the event loop runs other tasks: at once, a conversion
        would block the loop for seconds, and a thread would hold the GIL."""
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
        return OpenContent(pieces[0], _each(pieces[1:]), sum(map(len, pieces)), shape)


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
        held = b"\r" if begun.endswith(b"\r") else b""  # the next octet decides whether it is bare
        result += with_crlf(begun.removesuffix(held))
        await asyncio.sleep(0)
    return result + with_crlf(held)
