"""Room in memory for the mails that filters look at.

A filter gets a mail whole, and may answer with another one. Large mails share a part of the room,
so that small ones do not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from postroad.contents import MemoryBudget
from postroad.errors import PostroadError

ROOM = 64 * 1024 * 1024
"""Octets of memory for filtered mails in a process; large ones have three quarters of it, of which
one that is larger takes all."""

SMALL = 64 * 1024

LARGE_MAIL = 1024 * 1024

MAX_WAIT = timedelta(seconds=30)
"""With it, and the time of all filters, a client has its reply before it leaves: it would send the
mail again, which is queued all the same."""


class NoRoom(PostroadError):
    """Filtered mails took all of the memory for too long."""

    transient = True
    hint = "let the filters be faster, or run more processes"


class FilterRoom:
    """The room of a process."""

    def __init__(self, octets: int = ROOM, max_wait: timedelta = MAX_WAIT) -> None:
        self._most, self._max_wait = octets * 3 // 4, max_wait
        self._room, self._of_large = MemoryBudget(octets), MemoryBudget(self._most)

    @asynccontextmanager
    async def taken(self, size_bytes: int) -> AsyncIterator[None]:
        """Take room for a mail of that size and all that filters make of it. Raises: NoRoom."""
        needed = min(4 * size_bytes + 4 * SMALL, self._most)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._max_wait.total_seconds()):
                    if size_bytes >= LARGE_MAIL:
                        await stack.enter_async_context(self._of_large.taken(needed))
                    await stack.enter_async_context(self._room.taken(needed))
            except TimeoutError:
                raise NoRoom("filtered mails take all of the memory that they may have") from None
            yield
