"""A function in Python as a filter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from postroad.intake.filters.decisions import FilterDecision, FilteredMail, FilterFailed
from postroad.threaded_calls import ThreadedCalls

THREADS = 32
"""Calls of functions that are not `async`, of all filters of a process, at a time."""


class FunctionFilter:
    """Calls a function with each mail. It returns a FilterDecision, or None, which accepts. One
    that is not `async` runs in a thread."""

    def __init__(self, call: Callable[[FilteredMail], Any], threads: ThreadedCalls) -> None:
        self._call, self._threads = call, threads

    async def decide(self, mail: FilteredMail) -> FilterDecision:
        """Return its decision. Raises: what it raises, FilterFailed."""
        if inspect.iscoroutinefunction(self._call):
            found = await self._call(mail)
        else:
            found = await self._threads.run(self._call, mail)
            found = await found if inspect.isawaitable(found) else found
        if not isinstance(found, FilterDecision | None):
            raise FilterFailed(f"it returns {type(found).__name__}, not FilterDecision or None")
        return found or FilterDecision()
