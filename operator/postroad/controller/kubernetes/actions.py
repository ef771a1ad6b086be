"""Logs what the operator does. Each line names the resource whose reconcile did it.

Reads, and what a reconcile finds as it should be, get no line, so that a cluster at rest logs
nothing.

How often the Events about an object are posted: pure.

Repetitions are counted here and posted together, once a minute at most; of all Events about an
object, a burst is posted and then few. What flaps for a day costs the API server no more. The
numbers are those of client-go's recorder: a burst of 25, then one in five minutes.

Since when objects are missing: what is missing for a moment has not been given up.

An object that is replaced, restored, or lacking in one answer of the API server is there again
soon. What is done because it is gone waits for `PATIENCE`. Source: ADR 0077.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

from postroad.controller.kubernetes.api import Key
from postroad.ports.clock import Clock
from postroad.telemetry import logs, metrics

_log = logs.logger("controller")
_numbers = count(1)
_about: ContextVar[dict[str, Any] | None] = ContextVar("about", default=None)


@contextmanager
def reconciling(key: Key) -> Iterator[None]:
    """Let the lines until the end of the block name a resource, and the number of this reconcile,
    also those of tasks that begin there."""
    token = _about.set({"resource": str(key), "reconcile": next(_numbers)})
    try:
        yield
    finally:
        _about.reset(token)


def read(found: Mapping[str, Any]) -> None:
    """Let the lines from now on name the generation of the resource."""
    if (fields := _about.get()) is not None:
        fields["generation"] = found["metadata"].get("generation")


def log_action(event: str, **fields: Any) -> None:
    """Log an action at INFO."""
    _log.info(event, **(_about.get() or {}), **fields)


def log_repair(what: str, **fields: Any) -> None:
    """Log and count what another process had changed or deleted, and is as declared again: a child,
    queues, a bucket, tables, options, or a user."""
    metrics.REPAIRS.labels(what).inc()
    log_action("repaired", what=what, **fields)


def log_unexpected(event: str, **fields: Any) -> None:
    """Log the error that is being handled, with its traceback."""
    _log.exception(event, **(_about.get() or {}), **fields)


BURST = 25
"""Posts about one object before they are fewer."""

REFILL = timedelta(minutes=5)
"""After so long one more is posted."""

TOGETHER = timedelta(minutes=1)
"""Within so long the repetitions of an Event are posted together."""

MAX_NAMES = 100
"""Events about an object that are counted; a further one begins the counts anew."""


@dataclass(slots=True)
class _Posts:
    """Posts that an object has left, and since when; the Events about it: when each was posted last
    (None: never), and how often it happened since."""

    left: float
    at: timedelta
    events: dict[str, tuple[timedelta | None, int]] = field(default_factory=dict)


class EventPace:
    """Paces the Events of each object, by its uid."""

    def __init__(self) -> None:
        self._objects: dict[str, _Posts] = {}

    def due(self, uid: str, name: str, now: timedelta) -> int:
        """Count an Event; return how often it happened since it was posted, 0 where it is not to be
        posted now."""
        posts = self._objects.setdefault(uid, _Posts(BURST, now))
        if len(posts.events) > MAX_NAMES:
            posts.events.clear()
        posted_at, times = posts.events.get(name, (None, 0))
        posts.left, posts.at = min(BURST, posts.left + (now - posts.at) / REFILL), now
        is_soon = posted_at is not None and now - posted_at < TOGETHER
        if is_soon or posts.left < 1:
            posts.events[name] = posted_at, times + 1
            return 0
        posts.left -= 1
        posts.events[name] = now, 0
        return times + 1

    def forget(self, uid: str) -> None:
        """Forget an object that is gone. Idempotent."""
        self._objects.pop(uid, None)


PATIENCE = timedelta(minutes=10)
"""Longer than a replacement by a tool for deployments takes, and than most restores."""


class Absences:
    """The objects that this process found missing. Another process begins anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Hashable, timedelta] = {}

    def end(self, of: Hashable) -> None:
        """Record that an object is there, or that its absence has had its effect. Idempotent."""
        self._since.pop(of, None)

    def has(self, of: Hashable) -> bool:
        """Whether an object was missing when it was last looked for."""
        return of in self._since

    def lasts(self, of: Hashable) -> bool:
        """Whether an object that is missing now has been missing for `PATIENCE`."""
        now = self._clock.elapsed()
        return now - self._since.setdefault(of, now) >= PATIENCE
