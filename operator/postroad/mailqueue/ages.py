"""Ages: live mails by destination domain and age, the picture known as qshape."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta

from postroad.domain.ages import AGES, limit_of
from postroad.mailqueue.browse import waiting
from postroad.mailqueue.engine import Engine

Ages = Mapping[str, Mapping[timedelta, int]]


class AgesCache:
    """Counts at most once in `timing.ages`, however many ask."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._counting = asyncio.Lock()
        self._at = timedelta(0)
        self._answer: Ages | None = None

    async def get(self) -> Ages:
        """Return the ages. Raises: ViewError, ConfigurationStale."""
        async with self._counting:
            now = self._engine.clock.elapsed()
            if self._answer is None or now - self._at > self._engine.timing.ages:
                self._answer, self._at = await self._count(), now
            return self._answer

    async def _count(self) -> Ages:
        now = self._engine.clock.now()
        counts: dict[str, dict[timedelta, int]] = defaultdict(lambda: dict.fromkeys(AGES, 0))
        async for each in waiting(self._engine):
            limit = limit_of(now - each.turn.accepted_at)
            for domain in each.turn.envelope.domains:
                counts[domain][limit] += 1
        return counts
