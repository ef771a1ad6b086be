"""Errors of single mails in maintenance: only that mail may suffer, and somebody has to hear of it.

A transient error may be that of a single mail too: one delay without a route, one object that
is not deleted. Only where such errors follow one another is a server taken to be away, which ends
the round.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from postroad.distributed.engine import Engine
from postroad.errors import PostroadError
from postroad.telemetry import metrics

MOST = 20
"""Mails in trouble that a round puts in the log. More have a common cause, perhaps, and a log of
each would drown it; they are still counted, and none keeps the others from being tended."""


IN_A_ROW = 32
"""Transient errors without a success between them that end a round: twice as many as are tended at
once, since those all meet the server's absence together."""


class MailErrors:
    """The mails of one round that could not be tended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._count = 0
        self._first: Exception | None = None
        self._transient: Exception | None = None
        self._in_a_row = self._succeeded = 0

    @contextmanager
    def of(self, enqueue_id: UUID) -> Iterator[None]:
        """Keep what goes wrong with one mail from the others: it is counted and, for the first
        ones, logged. Raises: a transient error that follows many others."""
        try:
            yield
        except Exception as error:
            if is_common(error):
                self._transient = self._transient or error
                self._in_a_row += 1
                if self._in_a_row >= IN_A_ROW:
                    raise
            self._count += 1
            self._first = self._first or error
            note(self._engine, enqueue_id, is_logged=self._count <= MOST)
        else:
            self._in_a_row = 0
            self._succeeded += 1

    def check(self) -> None:
        """Raises: a transient error, when nothing succeeded: the round is to be repeated."""
        if self._transient is not None and not self._succeeded:
            raise self._transient

    def end(self) -> None:
        """End the round. Raises: the first error, when there were more than are logged."""
        if self._first is not None and self._count > MOST:
            self._engine.log.error("many mails could not be tended", count=self._count, logged=MOST)
            raise self._first


def is_common(error: BaseException) -> bool:
    """Return whether an error may meet every other mail as well."""
    return isinstance(error, PostroadError) and error.transient


def note(engine: Engine, enqueue_id: UUID, *, is_logged: bool = True) -> None:
    """Count and log the error that is being handled."""
    metrics.MAINTENANCE_ERRORS.labels(engine.label).inc()
    error = sys.exception()
    if not is_logged:
        return
    if error is not None and is_common(error):
        name = type(error).__name__
        engine.log.warning("a mail could not be tended", enqueue_id=str(enqueue_id), error=name)
    else:
        engine.log.exception("a mail could not be tended", enqueue_id=str(enqueue_id))
