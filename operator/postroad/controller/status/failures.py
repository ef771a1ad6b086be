"""Reports resources whose reconciles fail: as Ready=Unknown, by an Event where the API server takes
no status, and as a metric.

A reconcile that fails writes no status, and the one from before may be wrong by then.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from postroad.controller.kubernetes.api import Key
from postroad.controller.status.attempts import unexpected
from postroad.controller.status.conditions import (
    READY,
    RECONCILING,
    STALLED,
    Finding,
    Truth,
    failed,
)
from postroad.controller.status.status import Report, composed
from postroad.controller.status.status_writer import WARNING, Announcement, StatusWriter
from postroad.errors import LeadershipLost, PostroadError
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kind, Object
from postroad.telemetry import logs, metrics
from postroad.telemetry.metrics import Sample

MAX_UNREPORTED = 3
"""Reconciles in a row that fail before the status reports it: a moment without answers, or another
process that writes meanwhile, is over by then."""

_log = logs.logger("controller")


class Failures:
    """Since when the reconciles of each resource fail, or lack answers of the API server."""

    def __init__(self, status_writer: StatusWriter, clock: Clock) -> None:
        self._status_writer = status_writer
        self._clock = clock
        self._since: dict[Key, datetime] = {}
        self._in_a_row: Counter[Key] = Counter()

    def has(self, key: Key) -> bool:
        """True if the last reconcile failed, or lacked answers."""
        return key in self._since

    def lasts(self, key: Key) -> bool:
        """True if reconciles have failed so often that the status is to report it."""
        return self._in_a_row[key] >= MAX_UNREPORTED

    def samples(self) -> Iterator[Sample]:
        """Yield for each resource since when its reconciles fail."""
        for key, since in self._since.items():
            yield (key.kind, key.namespace, key.name), since.timestamp()

    def add(self, key: Key) -> None:
        """Count a reconcile that failed."""
        self._since.setdefault(key, self._clock.now())
        self._in_a_row[key] += 1

    def end(self, key: Key, *, lacked_answers: bool = False) -> None:
        """Note a reconcile that wrote what it found, or a resource that is gone."""
        self._in_a_row.pop(key, None)
        if lacked_answers:
            self._since.setdefault(key, self._clock.now())
        else:
            self._since.pop(key, None)

    async def report(self, kind: Kind, found: Object, error: Exception) -> None:
        """Write Ready=Unknown with the error into a status. Its other conditions stay: they are of
        the generation that they name."""
        finding = _finding(error)
        trying = replace(finding, condition=RECONCILING, truth=Truth.TRUE)
        before, generation = found.get("status") or {}, found["metadata"]["generation"]
        report = Report(
            [replace(finding, truth=Truth.UNKNOWN), trying],
            {"observedGeneration": before.get("observedGeneration")},
            replaced=frozenset({STALLED}),
        )
        after = composed(before, report, generation, self._clock.now())
        try:
            await self._status_writer.write(kind, found, after)
        except LeadershipLost:
            raise
        except Exception as refused:
            _log.warning("the API server took no status", kind=kind.name, error=str(refused))
            metrics.UNWRITTEN_STATUSES.labels(kind.name).inc()
            note = f"the status is not of now: {_finding(refused).message}; {finding.message}"
            event = Announcement(WARNING, "StatusNotWritten", note)
            await self._status_writer.announce(found, [event])


def _finding(error: Exception) -> Finding:
    return failed(READY, error) if isinstance(error, PostroadError) else unexpected(READY, error)
