"""Filters from the file of intake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postroad.bootstrap.targets import imported
from postroad.contents import MemoryBudget
from postroad.errors import InvalidSettings
from postroad.intake.filters.chain import ROOM, Decide, Filter, FilterChain
from postroad.intake.filters.decisions import FilteredMail
from postroad.intake.filters.functions import THREADS, FunctionFilter
from postroad.intake.filters.milter import MilterFilter
from postroad.intake_settings.filters import FilterSection
from postroad.threaded_calls import ThreadedCalls


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
    """The filters of a process, of which those of a file that has changed share what there is."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._room, self._threads = MemoryBudget(ROOM), ThreadedCalls(THREADS)

    def chain(self, documents: Sequence[FilterDocument], listener: str) -> FilterChain | None:
        """Return the filters of a listener; None: it has none."""
        filters = [
            Filter(its.name, self._decide(each), its.on_error, its.timeout)
            for each, its in ((each, each.section) for each in documents)
            if its.listeners is None or listener in its.listeners
        ]
        return FilterChain(self._queue, filters, self._room) if filters else None

    def _decide(self, document: FilterDocument) -> Decide:
        if document.section.milter is not None:
            return MilterFilter(document.section.milter).decide
        assert document.call is not None
        return FunctionFilter(document.call, self._threads).decide
