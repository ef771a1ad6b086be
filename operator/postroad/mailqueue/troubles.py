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
"""Mails in trouble that a round goes on over: more have a common cause, which ends the round."""


class Troubles:
    """The mails of one round that could not be tended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._count = 0

    @contextmanager
    def of(self, enqueue_id: UUID) -> Iterator[None]:
        """Keep what goes wrong with one mail from the others: it is logged and counted. Raises:
        transient errors, and any once there were too many."""
        try:
            yield
        except Exception as error:
            if is_common(error) or self._count >= MOST:
                raise
            self._count += 1
            note(self._engine, enqueue_id)


def is_common(error: Exception) -> bool:
    """Return whether an error would meet every other mail as well."""
    return isinstance(error, PostroadError) and error.transient


def note(engine: Engine, enqueue_id: UUID) -> None:
    """Log and count the error that is being handled."""
    metrics.TROUBLES.labels(engine.label).inc()
    engine.log.exception("a mail could not be tended", enqueue_id=str(enqueue_id))
