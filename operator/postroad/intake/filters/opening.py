"""Filters from the file of intake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from postroad.bootstrap.targets import imported
from postroad.contents import MemoryBudget
from postroad.errors import InvalidSettings
from postroad.intake.filters.chain import ROOM, Filter, FilterChain
from postroad.intake.filters.decisions import FilterDecision, FilteredMail
from postroad.intake.filters.functions import THREADS, FunctionFilter
from postroad.intake.filters.milter import MilterFilter
from postroad.intake_settings.filters import FilterSection
from postroad.threaded_calls import ThreadedCalls


class Deciding(Protocol):
    """A filter, by its kind."""

    async def decide(self, mail: FilteredMail) -> FilterDecision:
        """Return what becomes of a mail. Raises whatever it likes."""

    def close(self) -> None:
        """Keep nothing open for later mails, of which some may come all the same."""


@dataclass(frozen=True, slots=True)
class FilterDocument:
    """A filter of the file of intake, with what that names."""

    section: FilterSection
    call: Callable[[FilteredMail], Any] | None = field(default=None, repr=False)

    @classmethod
    def read(cls, section: FilterSection, folder: Path) -> FilterDocument:
        """Read what a filter of the file in `folder` names. Raises: InvalidSettings."""
        if section.function is not None:
            return cls(section, imported(section.function))
        if section.http is not None:
            raise InvalidSettings(f"the filter {section.name} is of a kind that is not there yet")
        return cls(section)


class OpenFilters:
    """The filters of a process. Those that a changed file has as before stay as they are, with
    their connections."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._room, self._threads = MemoryBudget(ROOM), ThreadedCalls(THREADS)
        self._open: dict[FilterDocument, Deciding] = {}

    def use(self, documents: Sequence[FilterDocument]) -> None:
        """Have these filters, and no others."""
        before = self._open
        self._open = {each: before.get(each) or self._opened(each) for each in documents}
        for document, gone in before.items():
            if document not in self._open:
                gone.close()

    def chain(self, listener: str) -> FilterChain | None:
        """Return the filters of a listener; None: it has none."""
        filters = [
            Filter(its.name, deciding.decide, its.on_error, its.timeout)
            for its, deciding in ((each.section, self._open[each]) for each in self._open)
            if its.listeners is None or listener in its.listeners
        ]
        return FilterChain(self._queue, filters, self._room) if filters else None

    def _opened(self, document: FilterDocument) -> Deciding:
        if document.section.milter is not None:
            return MilterFilter(document.section.milter)
        assert document.call is not None
        return FunctionFilter(document.call, self._threads)
