"""The content of one mail on its way out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator


class Content:
    """The content of one mail whose beginning was looked at."""

    def __init__(self, first: bytes, rest: AsyncIterator[bytes]) -> None:
        self.has_8bit = not first.isascii()
        """Whether the beginning needs 8BITMIME; all of it for mails of one chunk."""
        self.seen_bytes = len(first)
        """How long that beginning is."""
        self._first = first
        self._rest = rest

    @classmethod
    async def peek(cls, chunks: AsyncIterator[bytes]) -> Content:
        """Read the first chunk. Raises: whatever the chunks raise."""
        async for first in chunks:
            return cls(first, chunks)
        return cls(b"", chunks)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield all of it. Once."""
        yield self._first
        async for chunk in self._rest:
            yield chunk
