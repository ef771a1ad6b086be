"""Phases of MailQueueTasks: which task begins, how far one is, and what its status says: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from postroad.controller.kubernetes.api import BEGUN
from postroad.controller.kubernetes.drift import hash_in
from postroad.controller.spec import task as spec
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import Finding, bad, good
from postroad.controller.task.runs import TaskRun
from postroad.ports.kubernetes import Object

PENDING, RUNNING, SCHEDULED = "Pending", "Running", "Scheduled"
COMPLETED, FAILED = "Completed", "Failed"
"""Phases."""

ENDED = (COMPLETED, FAILED)

ANOTHER_TASK = "AnotherTask"
OF_THE_QUEUE = {ANOTHER_TASK, "QueueNotFound", "QueueDeleted", "QueueNotReady", "QueuePaused"}
"""Reasons for which all tasks of a MailQueue wait: a task with another one lets others go first."""


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The result of a step: the phase, a finding about Complete, further ones, fields of the
    status, and the run that has ended now."""

    phase: str
    finding: Finding
    others: tuple[Finding, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    ended: TaskRun | None = None


def is_stray(made: Object) -> bool:
    """True if what was made for a task has no controller, and is not being deleted."""
    metadata = made["metadata"]
    owners = metadata.get("ownerReferences") or []
    return "deletionTimestamp" not in metadata and not any(
        each.get("controller") for each in owners
    )


def phase_of(found: Object) -> str:
    """Return the phase of a task."""
    return str((found.get("status") or {}).get("phase", PENDING))


def is_under_way(progress: TaskProgress) -> bool:
    """True if pods may work, or another task does, whose end makes nothing due."""
    return progress.phase == RUNNING or progress.finding.reason == ANOTHER_TASK


def failure_of(found: Object, progress: TaskProgress) -> TaskRun | None:
    """Return the failure of a task that no run of its pods reports; None: there is none."""
    if progress.phase != FAILED or phase_of(found) == FAILED:
        return None
    status = found.get("status") or {}
    return TaskRun(
        found["metadata"]["name"],
        status.get("startedAt"),
        progress.fields["finishedAt"],
        status.get("matched"),
        status.get("done"),
        progress.finding.message,
    )


def left_of(matched: int | None, done: int | None) -> int | None:
    """Return how many mails a failed task left; None where that is not known."""
    return None if matched is None else max(0, matched - (done or 0))


def obstacle_of(queue: Object) -> Finding | None:
    """Return why a task cannot begin yet on a MailQueue that is there; None: it can."""
    name = queue["metadata"]["name"]
    reason, message = "", ""
    if queue["spec"].get("paused"):
        reason, message = "QueuePaused", f"spec.paused of MailQueue {name} is true: the task waits"
    elif "configuration" not in (queue.get("status") or {}):
        reason, message = "QueueNotReady", f"MailQueue {name} has no configuration yet"
    return bad(condition.COMPLETE, reason, message, retryable=True) if reason else None


def first_of(found: Object, others: Sequence[Object]) -> Object | None:
    """Return the task that goes before a task of the same MailQueue: one that has begun, else the
    oldest that waits for nothing but its MailQueue and its turn. Those by a schedule do not count.
    """
    beside = [
        each
        for each in others
        if each["metadata"]["uid"] != found["metadata"]["uid"]
        and spec.queue_of_task(each) == spec.queue_of_task(found)
        and each["spec"].get("schedule") is None
        and "deletionTimestamp" not in each["metadata"]
        and phase_of(each) not in ENDED
    ]
    begun = [each for each in beside if _is_begun(each)]
    waiting = [each for each in beside if _waits_for_its_turn(each) and _age(each) < _age(found)]
    return min(begun or waiting, key=_age, default=None)


def _age(found: Object) -> tuple[str, str]:
    return found["metadata"]["creationTimestamp"], found["metadata"]["uid"]


def _is_begun(found: Object) -> bool:
    return phase_of(found) == RUNNING or hash_in(found, BEGUN) == found["metadata"]["uid"]


def _waits_for_its_turn(found: Object) -> bool:
    found_conditions = (found.get("status") or {}).get("conditions") or []
    reasons = [each["reason"] for each in found_conditions if each["type"] == condition.COMPLETE]
    return set(reasons) <= OF_THE_QUEUE


def running(message: str) -> Finding:
    """The task is under way."""
    return bad(condition.COMPLETE, condition.RUNNING, message, retryable=True)


def completed(message: str) -> Finding:
    """The task, or its last run, is done."""
    return good(condition.COMPLETE, message, COMPLETED)


def as_begun(found: Object) -> TaskProgress:
    """Return what the status of a task has that was just begun, or refused as a copy."""
    status = found["status"]
    (complete,) = (each for each in status["conditions"] if each["type"] == condition.COMPLETE)
    is_running = status["phase"] == RUNNING
    finding = bad(condition.COMPLETE, complete["reason"], complete["message"], retryable=is_running)
    ended = {name: status[name] for name in ("finishedAt",) if name in status}
    return TaskProgress(status["phase"], finding, fields=ended)


def at_least(before: Mapping[str, Any], name: str, now: int | None) -> int | None:
    return max((each for each in (before.get(name), now) if each is not None), default=None)
