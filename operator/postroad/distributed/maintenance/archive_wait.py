"""Cleanup waits until slices are archived: for a limited time, in queues that are archived at all.

Nothing but cleanup deletes what an archive reads, and rows and marks stay on Cassandra's disks
until their lifetime ends, cleaned or not: waiting costs no space. How long a slice waits is counted
from when browse start was seen behind it, by the process' own clock, because a slice that mail kept
from draining is old when it is passed. A process that starts anew counts anew; the age of a slice
bounds that, so that it is cleaned before its rows expire. Source: ADR 0037.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from postroad.distributed.engine.engine import Engine
from postroad.domain.queues.lifetimes import longest_archive_wait, oldest_that_waits
from postroad.ports.view import FOREVER, Limits

STEPS = 16
"""Places of browse start that are remembered over the longest wait."""


class ArchiveWait:
    """Remembers when this process saw browse start where."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: list[tuple[datetime, timedelta]] = []

    async def until(self, limits: Limits, before: datetime) -> datetime:
        """Return the moment from which on slices wait; `before`, up to where cleanup may go
        otherwise, when none does. Raises: ViewError, ClockSkew."""
        archived = limits.archived_through
        if archived is None or archived >= before:
            self._seen.clear()
            return before
        lifetime = await self._engine.row_lifetime() or FOREVER
        longest, now = longest_archive_wait(lifetime), self._engine.clock.elapsed()
        cleaned = limits.content_start
        self._seen = [each for each in self._seen if cleaned is None or each[0] > cleaned]
        if not self._seen or now - self._seen[-1][1] >= longest / STEPS:
            self._seen.append((before, now))
        over = [place for place, since in self._seen if now - since >= longest]
        oldest = oldest_that_waits(await self._engine.limits_cache.view_now(), lifetime)
        return min(before, max(archived, oldest, *over))
