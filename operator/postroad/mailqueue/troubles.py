"""Errors of single mails in upkeep: only that mail may suffer, and somebody has to hear of it.

What a server that is away does to one mail it does to all: such an error ends the round.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from postroad.errors import PostroadError
from postroad.mailqueue.engine import Engine
from postroad.telemetry import metrics

MOST = 20
"""Mails in trouble that a round puts in the log. More have a common cause, perhaps, and a log of
each would drown it; they are still counted, and none keeps the others from being tended."""


class Troubles:
    """The mails of one round that could not be tended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._count = 0
        self._first: Exception | None = None

    @contextmanager
    def of(self, enqueue_id: UUID) -> Iterator[None]:
        """Keep what goes wrong with one mail from the others: it is counted and, for the first
        ones, logged. Raises: transient errors, which end the round."""
        try:
            yield
        except Exception as error:
            if is_common(error):
                raise
            self._count += 1
            self._first = self._first or error
            note(self._engine, enqueue_id, is_logged=self._count <= MOST)

    def end(self) -> None:
        """End the round. Raises: the first error, when there were more than are logged."""
        if self._first is not None and self._count > MOST:
            self._engine.log.error("many mails could not be tended", count=self._count, logged=MOST)
            raise self._first


def is_common(error: Exception) -> bool:
    """Return whether an error would meet every other mail as well."""
    return isinstance(error, PostroadError) and error.transient


def note(engine: Engine, enqueue_id: UUID, *, is_logged: bool = True) -> None:
    """Count and log the error that is being handled."""
    metrics.TROUBLES.labels(engine.label).inc()
    if is_logged:
        engine.log.exception("a mail could not be tended", enqueue_id=str(enqueue_id))
