"""Where the driver's threads leave results, and the event loop picks them up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from cassandra.cluster import ResultSet

Row = Mapping[str, Any]
"""A row by column name."""

Page = tuple[list[Row], bytes | None]
"""Rows, and where the next page begins; None: there is none."""

PendingResult = asyncio.Future[Page]


class LoopBridge:
    """Many results cost one wake-up of the loop."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[PendingResult, Page | None, Exception | None]] = deque()
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def expect(self) -> PendingResult:
        """Return what a request's result will arrive at."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    def rows(self, rows: list[Row] | None, arrival: PendingResult, response: Any) -> None:
        """Called in the driver's thread with one page."""
        state = ResultSet(response, rows).paging_state if response.has_more_pages else None
        self._put(arrival, (rows or [], state), None)

    def error(self, error: Exception, arrival: PendingResult) -> None:
        """Called in the driver's thread."""
        self._put(arrival, None, error)

    def _put(self, arrival: PendingResult, page: Page | None, error: Exception | None) -> None:
        # Append before looking at the flag, which the loop clears before it empties: nothing can
        # be left behind without a wake-up to come.
        self._arrived.append((arrival, page, error))
        if not self._woken:
            self._woken = True
            try:
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._hand_out)
            except RuntimeError:
                pass  # the loop was closed; nobody waits any more

    def _hand_out(self) -> None:
        self._woken = False
        while self._arrived:
            arrival, page, error = self._arrived.popleft()
            if arrival.done():
                continue  # its waiter was cancelled
            if error is not None:
                arrival.set_exception(error)
            elif page is not None:
                arrival.set_result(page)
