"""The content of a mail in chunks, whatever it was given as."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from postroad.domain.mail.mail import Content
from postroad.errors import InvalidMail


async def chunks_of(content: Content, size: int) -> AsyncIterator[bytes]:
    """Yield a content in chunks of at most `size` octets. Raises: InvalidMail, where its file
    cannot be read or its stream yields what is not bytes; the stream's own errors."""
    if isinstance(content, bytes):
        parts = _of_bytes(content)
    else:
        parts = _of_file(content, size) if isinstance(content, Path) else content
    async for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise InvalidMail(f"content: a stream yields bytes, not {type(part).__name__}")
        octets = bytes(part)
        for first in range(0, len(octets), size):
            yield octets[first : first + size]


async def _of_bytes(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _of_file(path: Path, size: int) -> AsyncIterator[bytes]:
    try:
        with await asyncio.to_thread(path.open, "rb") as file:
            while chunk := await asyncio.to_thread(file.read, size):
                yield chunk
    except OSError as error:
        raise InvalidMail(f"content: the file cannot be read: {error.strerror}") from error
