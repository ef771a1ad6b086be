"""The content of one mail on its way out: its properties for MAIL, its conversion to 7 bits, the
signatures before it.

Prepares contents for their next hop: converted to 7 bits where it takes no more, then signed.

Signing comes last, because a signature covers the octets that are sent; only leading dots are
doubled behind it, which the next hop undoes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from postroad.contents import MemoryBudget
from postroad.domain.mail.dot_stuffing import LineEnds
from postroad.domain.mail.mail import Envelope
from postroad.domain.mail.seven_bits import PIECE, Result, Steps, in_seven_bits, is_signed
from postroad.domain.mail.shapes import MAX_HEADER, Scanner, Shape, shape_of, with_crlf
from postroad.domain.smtp.next_hops import NextHop
from postroad.ports.delivery import Signer, Signing
from postroad.telemetry.metrics import UNSIGNED

MAX_CHANGED = 64 * 1024 * 1024
"""Octets of a mail that is converted to 7 bits or signed: both hold the whole mail in memory."""


class OpenContent:
    """The content of one mail whose first chunk was read."""

    def __init__(
        self,
        first: bytes,
        rest: AsyncIterator[bytes] | Iterator[bytes],
        size_bytes: int,
        shape: Shape | None,
    ) -> None:
        self.first = first
        """The first chunk, empty for an empty mail."""
        self.shape = shape
        """None: no shape is recorded with the mail, and it is large."""
        known = shape or shape_of((first[:MAX_HEADER],))
        self.header = first[: min(known.header_size, MAX_HEADER)]
        """Part of the header that is in the first chunk."""
        self.folds = (shape is None or shape.folds > 0) and not is_signed(self.header)
        """True if lines that are too long are folded. Signed mail goes unchanged, because folding
        would break the signature; the next hop decides."""
        self._rest, self._size_bytes = rest, size_bytes
        self._chunks: list[bytes] | None = None
        """All of it, once that is in memory."""
        self._converted: OpenContent | None = None
        self._signed: OpenContent | None = None

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

    @classmethod
    def at_hand(cls, octets: bytes, shape: Shape | None) -> OpenContent:
        """Return a content that is in memory; where acceptance recorded no shape, find it."""
        return cls.held((octets,), shape or shape_of((octets,)))

    @classmethod
    def held(cls, chunks: Sequence[bytes], shape: Shape) -> OpenContent:
        return cls(chunks[0], iter(chunks[1:]), sum(map(len, chunks)), shape)

    @property
    def may_have_8bit(self) -> bool:
        """True if there are octets above 127; True where the shape is unknown."""
        return self.shape is None or self.shape.has_8bit

    @property
    def has_8bit_header(self) -> bool:
        """True if the header holds octets above 127."""
        return not self.header.isascii() if self.shape is None else self.shape.has_8bit_header

    @property
    def sent_size(self) -> int:
        """The octets as RFC 1870 counts them; as stored, where the shape is unknown."""
        if self.shape is None:
            return self._size_bytes
        return self.shape.sent_size(self._size_bytes, folds=self.folds)

    @property
    def size_bytes(self) -> int:
        """The octets as stored."""
        return self._size_bytes

    @property
    def is_held(self) -> bool:
        """True if the whole content is in memory."""
        return len(self.first) >= self._size_bytes

    async def more(self) -> bytes | None:
        """Return the next chunk after the first, None at the end. Raises: what the chunks raise."""
        rest = self._rest
        return next(rest, None) if isinstance(rest, Iterator) else await anext(rest, None)

    async def in_seven_bits(self) -> OpenContent:
        """Return the content as a next hop without 8BITMIME accepts it; unchanged, if it cannot be
        converted. From then on it is in memory. Raises: what reading it raises."""
        if self._size_bytes > MAX_CHANGED:
            return self
        if self._converted is None:
            self._converted = await self._convert()
        return self._converted

    async def signed(self, signing: Signing) -> OpenContent:
        """Return the content as it is sent, behind its signatures; unchanged, if it cannot be
        signed. From then on it is in memory. Raises: what reading it raises."""
        if self._signed is None:
            self._signed = await self._sign(signing)
        return self._signed

    async def _all(self) -> list[bytes]:
        if self._chunks is None:
            chunks = [self.first]
            while (chunk := await self.more()) is not None:
                chunks.append(chunk)
            self._chunks = chunks
        self._rest = iter(self._chunks[1:])
        return self._chunks

    async def _convert(self) -> OpenContent:
        """Converts in steps, between which the event loop runs other tasks: at once, a conversion
        would block the loop for seconds, and a thread would hold the GIL."""
        chunks = await self._all()
        if self.shape is None:
            self.shape = await _shape_of(_cut(chunks))
        if not self.shape.has_8bit:
            return self
        whole = bytearray().join(chunks)
        pieces = await _stepwise(
            in_seven_bits(await _normalised(whole) if self.shape.bare_line_ends else whole)
        )
        if pieces is None:
            return self
        return OpenContent.held(pieces, await _shape_of(pieces))

    async def _sign(self, signing: Signing) -> OpenContent:
        chunks = await self._all()
        shape = self.shape or await _shape_of(_cut(chunks))
        lines = LineEnds(shape, folds=self.folds)
        final: list[bytes] = []
        for piece in _cut(chunks):
            if final:
                await asyncio.sleep(0)
            final.append(lines.feed(piece))
            signing.feed(final[-1])
        last = lines.end()
        signing.feed(last)
        fields = signing.end()
        if not fields:
            return self
        if lines.is_verbatim:
            final = list(chunks)  # else a large mail would be in memory twice
        final = [fields + final[0], *filter(None, (*final[1:], last))]
        if not lines.is_verbatim:
            return OpenContent.held(final, await _shape_of(final))
        header_size = shape.header_size + len(fields)
        return OpenContent.held(final, replace(shape, header_size=header_size, is_terminated=True))


def _cut(chunks: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    for chunk in chunks:
        if len(chunk) <= PIECE and isinstance(chunk, bytes):
            yield chunk
            continue
        for at in range(0, len(chunk), PIECE):
            yield bytes(chunk[at : at + PIECE])


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
    for piece in _cut((octets,)):
        begun = held + piece
        held = b"\r" if begun.endswith(b"\r") else b""  # the next octet decides whether it is bare
        result += with_crlf(begun.removesuffix(held))
        await asyncio.sleep(0)
    return result + with_crlf(held)


ROOM = MAX_CHANGED + MAX_CHANGED // 2
"""Octets of contents that are prepared at the same time: beside the largest, some more."""


class Preparation:
    """State that the connections of a process share. Needs a running event loop."""

    def __init__(self, signer: Signer | None = None) -> None:
        self._signer = signer
        self._room = MemoryBudget(ROOM)

    def leaves(self, content: OpenContent, *, takes_8bit: bool) -> bool:
        """Return whether a content goes as it is to every next hop like this one."""
        return self._signer is None and (takes_8bit or not content.may_have_8bit)

    def of(
        self, content: OpenContent, envelope: Envelope, hop: NextHop, *, takes_8bit: bool
    ) -> AbstractAsyncContextManager[OpenContent] | None:
        """Return the content as a next hop gets it, which stays in memory until the context ends;
        None where it goes as it is. A large one waits until there is room for it; where its next
        hop is slow, its further ones do, and those of others do not. Entering raises what reading
        the content raises."""
        is_converted = not takes_8bit and content.may_have_8bit
        signing = None if self._signer is None else self._signer.begin(content.header, envelope)
        if signing is None and not is_converted:
            return None
        if content.size_bytes > MAX_CHANGED:
            if signing is not None:
                UNSIGNED.labels("size").inc()
            return None
        return self._prepared(content, signing, hop, is_converted=is_converted)

    @asynccontextmanager
    async def _prepared(
        self, content: OpenContent, signing: Signing | None, hop: NextHop, *, is_converted: bool
    ) -> AsyncIterator[OpenContent]:
        async with self._room.taken(0 if content.is_held else content.size_bytes, hop):
            if is_converted:
                content = await content.in_seven_bits()
            yield content if signing is None else await content.signed(signing)
