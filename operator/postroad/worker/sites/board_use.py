"""The use of a board that may be away: a warning at its beginning, and none for what follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from postroad.errors import PostroadError
from postroad.telemetry.logs import logger

_log = logger("worker")


class BoardUse:
    """What one task does with a board."""

    def __init__(self) -> None:
        self._is_away = False

    @contextmanager
    def unless_away(self) -> Iterator[None]:
        """Go on without the board while it is away."""
        try:
            yield
        except Exception as error:  # a driver's bug must not end the loop
            if not self._is_away:
                text = error.explain() if isinstance(error, PostroadError) else repr(error)
                _log.warning("the board of the queue cannot be used", error=text)
            self._is_away = True
        else:
            self._is_away = False
