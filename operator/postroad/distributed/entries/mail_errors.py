"""Errors of single mails in maintenance: each affects only its mail, and is logged and counted.

A transient error may belong to a single mail too: one delay queue that is missing, one object that
is not deleted. Only many such errors in a row show that a server is away, which ends the round.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.errors import PostroadError
from postroad.telemetry import metrics

MOST = 20
"""Log at most this many mails in a round; further ones, likely of one cause, are only counted."""


IN_A_ROW = 32
"""Transient errors in a row that end a round: twice as many as mails that are maintained at once,
since those all meet a server's absence together."""


class MailErrors:
    """The mails of one round for which maintenance failed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._count = 0
        self._first: Exception | None = None
        self._transient: Exception | None = None
        self._in_a_row = self._succeeded = 0

    @contextmanager
    def of(self, enqueue_id: UUID) -> Iterator[None]:
        """Catch the error of one mail, count it and, for the first `MOST`, log it. Raises: a
        transient error that follows many others."""
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
        """Raises: a transient error, when no mail succeeded: the round is to be repeated."""
        if self._transient is not None and not self._succeeded:
            raise self._transient

    def end(self) -> None:
        """End the round. Raises: the first error, when there were more than are logged."""
        if self._first is not None and self._count > MOST:
            self._engine.log.error(
                "maintenance failed for many mails", count=self._count, logged=MOST
            )
            raise self._first


def is_common(error: BaseException) -> bool:
    """Return whether an error may affect every other mail too."""
    return isinstance(error, PostroadError) and error.transient


def note(engine: Engine, enqueue_id: UUID, *, is_logged: bool = True) -> None:
    """Count and log the error that is being handled."""
    metrics.MAINTENANCE_ERRORS.labels(engine.label).inc()
    error = sys.exception()
    if not is_logged:
        return
    if error is not None and is_common(error):
        name = type(error).__name__
        engine.log.warning("maintenance failed for a mail", enqueue_id=str(enqueue_id), error=name)
    else:
        engine.log.exception("maintenance failed for a mail", enqueue_id=str(enqueue_id))
