"""State that the operator last reported of each resource, as samples of metrics."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from postroad.controller.kubernetes.api import MAIL_QUEUE_TASK
from postroad.domain.values.instants import parse_duration
from postroad.ports.kubernetes import Object
from postroad.telemetry.metrics import Sample

STATES = {"delayed": "delayed", "held": "held", "dead": "deadLetters"}
"""Fields of the status of a MailQueue, by the state of the mails that they count. Those of `size`
that are neither delayed nor held are waiting."""


class _ResourceState(NamedTuple):
    resource: tuple[str, str, str]
    conditions: tuple[tuple[str, str], ...]
    mails: tuple[tuple[str, int], ...]
    jobs: tuple[tuple[str, str, float], ...]
    is_run_failed: bool | None


class ResourceStates:
    """Conditions and metrics of all resources that were reported and are not gone."""

    def __init__(self) -> None:
        self._states: dict[str, _ResourceState] = {}

    def record(self, found: Object, status: Mapping[str, Any]) -> None:
        metadata = found["metadata"]
        conditions = status.get("conditions") or []
        if found["kind"] == MAIL_QUEUE_TASK.name:
            conditions = []  # it is not to be ready for long, nor for ever
        self._states[metadata["uid"]] = _ResourceState(
            (found["kind"], metadata["namespace"], metadata["name"]),
            tuple((each["type"], each["status"]) for each in conditions),
            tuple(_mails_by_state(status)),
            tuple(_of_jobs(status.get("pipeline") or [])),
            _is_run_failed(status),
        )

    def forget(self, uid: str) -> None:
        """Forget a resource that is gone. Idempotent."""
        self._states.pop(uid, None)

    def conditions(self) -> Iterator[Sample]:
        for each in self._states.values():
            for condition in each.conditions:
                yield (*each.resource, *condition), 1

    def mails(self) -> Iterator[Sample]:
        for each in self._states.values():
            _, namespace, name = each.resource
            for state, count in each.mails:
                yield (namespace, name, state), count

    def due_mails(self) -> Iterator[Sample]:
        """Yield a sample for the mails of each MailQueue that wait for nothing but a worker."""
        for (namespace, name, state), count in self.mails():
            if state == "waiting":
                yield (namespace, name), count

    def jobs(self, which: str) -> Iterator[Sample]:
        """Yield one quantity of each job of each MailQueue's pipeline: success, lag or findings."""
        for each in self._states.values():
            _, namespace, name = each.resource
            for job, what, value in each.jobs:
                if what == which:
                    yield (namespace, name, job), value

    def failed_tasks(self) -> Iterator[Sample]:
        """Yield for each MailQueueTask by a schedule whether the last run failed."""
        for each in self._states.values():
            _, namespace, name = each.resource
            if each.is_run_failed is not None:
                yield (namespace, name), each.is_run_failed


def _mails_by_state(status: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield counts that add up to all mails of a queue."""
    if "size" in status:
        apart = status.get("delayed", 0) + status.get("held", 0)
        yield "waiting", max(0, status["size"] - apart)
    for state, field in STATES.items():
        if field in status:
            yield state, status[field]


def _is_run_failed(status: Mapping[str, Any]) -> bool | None:
    """Return whether the last run of a schedule failed; None without one, or while something else
    is the matter."""
    if status.get("phase") != "Scheduled":
        return None
    ends = {"Completed": False, "RunFailed": True}
    found = [ends.get(e["reason"]) for e in status["conditions"] if e["type"] == "Complete"]
    return next(iter(found), None)


def _of_jobs(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, float]]:
    for each in entries:
        job = each["job"]
        if "lastSuccess" in each:
            yield job, "success", datetime.fromisoformat(each["lastSuccess"]).timestamp()
        if "lag" in each:
            yield job, "lag", parse_duration(each["lag"]).total_seconds()
        if "findings" in each:
            yield job, "findings", each["findings"]
