"""The content of a mail in chunks, whatever it was given as, and the limit on the octets of
contents that are in memory at the same time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
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


class _Place:
    """Place that a content has, or waits for."""

    def __init__(self, octets: int, holder: Hashable) -> None:
        self.octets, self.holder = octets, holder
        self.is_given = asyncio.get_running_loop().create_future()
        self.passed: _Place | None = None
        """The one that came before and waits still."""
        self.passing = 0
        """Octets that those have who came later."""


class MemoryBudget:
    """Octets that are given first come, first served, with two exceptions that keep one slow holder
    from holding up the others. A holder that has some gets no more than half of what the others
    leave; its further contents wait, and block no other's. A content that waits for room lets later
    ones pass as far as they leave enough for it, so that the largest one waits only for those that
    were there before."""

    def __init__(self, octets: int) -> None:
        self._octets = octets
        self._taken = 0
        self._held: Counter[Hashable] = Counter()
        self._waiting: list[_Place] = []

    @asynccontextmanager
    async def taken(self, octets: int, holder: Hashable = None) -> AsyncIterator[None]:
        """Take some room for the duration of the context. What is larger than all there is gets
        all of it, once nothing else has any. `holder`: for what; None: nothing else is held for
        anything."""
        if not octets:
            yield
            return
        place = _Place(min(octets, self._octets), holder)
        self._waiting.append(place)
        self._give()
        try:
            await place.is_given
            yield
        finally:
            self._return(place)
            self._give()

    def _give(self) -> None:
        """Give room to those that wait, as far as there is some."""
        first: _Place | None = None
        for place in list(self._waiting):
            if place.is_given.cancelled() or self._is_at_its_share(place):
                continue  # one that was cancelled has not run since then
            fits = self._taken + place.octets <= self._octets
            if first is not None:
                left = self._octets - first.octets - first.passing
                fits = fits and place.octets <= left
            if not fits:
                first = first or place
                continue
            self._waiting.remove(place)
            self._taken += place.octets
            self._held[place.holder] += place.octets
            if first is not None:
                place.passed = first
                first.passing += place.octets
            place.is_given.set_result(None)

    def _is_at_its_share(self, place: _Place) -> bool:
        if place.holder is None or not (held := self._held[place.holder]):
            return False
        left_by_others = self._octets - (self._taken - held)
        return 2 * (held + place.octets) > left_by_others

    def _return(self, place: _Place) -> None:
        if place in self._waiting:  # it was cancelled before
            self._waiting.remove(place)
            return
        self._taken -= place.octets
        self._held[place.holder] -= place.octets
        if not self._held[place.holder]:
            del self._held[place.holder]
        if place.passed is not None:
            place.passed.passing -= place.octets
