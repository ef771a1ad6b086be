"""Filters from the file of intake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from postroad.bootstrap.targets import imported
from postroad.domain.delivery.webhooks import read_secrets
from postroad.errors import InvalidInput, InvalidSettings
from postroad.intake.filters.chain import Decide, Filter, FilterChain
from postroad.intake.filters.decisions import FilteredMail
from postroad.intake.filters.functions import THREADS, FunctionFilter
from postroad.intake.filters.milter import MilterFilter
from postroad.intake.filters.room import FilterRoom
from postroad.intake_settings.filters import FilterSection
from postroad.threaded_calls import ThreadedCalls


@dataclass(frozen=True, slots=True)
class FilterDocument:
    """A filter of the file of intake, with what that names."""

    section: FilterSection
    call: Callable[[FilteredMail], Any] | None = field(default=None, repr=False)
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    ca_file: Path | None = None
    """Authorities that vouch for a hook; None: those of the process."""

    @classmethod
    def read(cls, section: FilterSection, folder: Path) -> FilterDocument:
        """Read what a filter of the file in `folder` names. Raises: InvalidSettings."""
        if section.function is not None:
            return cls(section, imported(section.function))
        if section.secret is None:
            return cls(section)
        assert section.secret.file is not None  # a file of intake names no Secret
        file = folder / section.secret.file
        try:
            secrets = read_secrets(file.read_text())
        except (OSError, UnicodeDecodeError, InvalidInput) as error:
            what = str(error) if isinstance(error, InvalidInput) else type(error).__name__
            raise InvalidSettings(f"the secrets of the filter {section.name}: {what}") from error
        ca_file = None if section.tls is None else section.tls.ca_file
        return cls(section, secrets=secrets, ca_file=ca_file and folder / ca_file)


class OpenFilters:
    """The filters of a process, of which those of a file that has changed share what there is."""

    def __init__(self, queue: str, ca_file: Path | None, now: Callable[[], datetime]) -> None:
        self._queue, self._ca_file, self._now = queue, ca_file, now
        self._room, self._threads = FilterRoom(), ThreadedCalls(THREADS)

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
        if document.section.http is not None:
            from postroad.intake.filters.hook import HookFilter  # imports aiohttp

            url, ca_file = document.section.http, document.ca_file or self._ca_file
            return HookFilter(url, document.secrets, ca_file, self._now).decide
        assert document.call is not None
        return FunctionFilter(document.call, self._threads).decide
