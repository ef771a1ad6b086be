"""How many octets of contents may be in memory at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class OctetRoom:
    """Octets that are given first come, first served, so that the largest content is not passed
    over for ever."""

    def __init__(self, octets: int) -> None:
        self._free = octets
        self._first = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def taken(self, octets: int) -> AsyncIterator[None]:
        """Take some room for the duration of the context, at most all there is."""
        if octets:
            async with self._first:
                while self._free < octets:
                    self._freed.clear()
                    await self._freed.wait()
                self._free -= octets
        try:
            yield
        finally:
            self._free += octets
            self._freed.set()
