"""The content of one mail on its way out."""

from __future__ import annotations

from collections.abc import AsyncIterator


class Content:
    """The content of one mail whose beginning was looked at."""

    def __init__(self, first: bytes, rest: AsyncIterator[bytes]) -> None:
        self.first = first
        """The beginning: the first chunk, empty for a mail without any."""
        self.has_8bit = not first.isascii()
        """Whether the beginning needs 8BITMIME; all of it for mails of one chunk."""
        self.has_8bit_header = self.has_8bit and not _header_of(first).isascii()
        """Whether the header holds octets above 127, as far as the beginning shows it."""
        self.seen_bytes = len(first)
        """How long that beginning is."""
        self._rest = rest

    @classmethod
    async def peek(cls, chunks: AsyncIterator[bytes]) -> Content:
        """Read the first chunk. Raises: whatever the chunks raise."""
        return cls(await anext(chunks, b""), chunks)

    async def more(self) -> bytes | None:
        """Return the next chunk after the beginning; None at the end. Raises: what reading it
        raises."""
        return await anext(self._rest, None)


def _header_of(first: bytes) -> bytes:
    ends = [at for at in (first.find(b"\r\n\r\n"), first.find(b"\n\n")) if at >= 0]
    return first[: min(ends)] if ends else first
