"""A leased mail of no engine."""

from __future__ import annotations

from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.delivery.retries import ItemEnding
from postroad.domain.queues.documents import LeasedMail


class NotedMail(LeasedMail):
    """A leased mail that notes its endings."""

    endings: tuple[tuple[ItemEnding, AttemptOutcomes | None], ...] = ()

    async def end(self, ending: ItemEnding, outcomes: AttemptOutcomes | None = None) -> None:
        self.endings = (*self.endings, (ending, outcomes))
