"""Logs what the operator does. Each line names the resource whose reconcile did it.

Reads, and what a reconcile finds as it should be, get no line, so that a cluster at rest logs
nothing."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

from postroad.controller.kubernetes.api import Key
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
