"""Takes results from the driver's threads to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from cassandra.cluster import ResultSet

Row = Mapping[str, Any]
"""A row by column name."""

RowPage = tuple[list[Row], bytes | None]
"""Rows, and the paging state of the next page; None: there is none."""

PendingResult = asyncio.Future[RowPage]


class LoopBridge:
    """Resolves many pending results with one wake-up of the loop."""

    def __init__(self) -> None:
        self._results: deque[tuple[PendingResult, RowPage | None, Exception | None]] = deque()
        self._is_woken = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def expect(self) -> PendingResult:
        """Return the pending result of a request."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    def rows(self, rows: list[Row] | None, pending: PendingResult, response: Any) -> None:
        """Put one page; the driver's thread calls it."""
        state = ResultSet(response, rows).paging_state if response.has_more_pages else None
        self._put(pending, (rows or [], state), None)

    def error(self, error: Exception, pending: PendingResult) -> None:
        """Put an error; the driver's thread calls it."""
        self._put(pending, None, error)

    def _put(self, pending: PendingResult, page: RowPage | None, error: Exception | None) -> None:
        # Append before the flag is read: the loop clears the flag before it empties the deque, so
        # no result stays there without a wake-up to come.
        self._results.append((pending, page, error))
        if not self._is_woken:
            self._is_woken = True
            try:
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._resolve)
            except RuntimeError:
                pass  # the loop was closed, and with it every task that waits

    def _resolve(self) -> None:
        self._is_woken = False
        while self._results:
            pending, page, error = self._results.popleft()
            if pending.done():
                continue  # its waiter was cancelled
            if error is not None:
                pending.set_exception(error)
            elif page is not None:
                pending.set_result(page)
