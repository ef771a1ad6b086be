"""Phases of MailQueueTasks, and the outcome of their runs, from Jobs and their pods: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from postroad.controller.kubernetes.api import BEGUN, BEGUN_FOR
from postroad.controller.kubernetes.drift import hash_in
from postroad.controller.mailqueue.children import (
    MAX_NUMBER,
    document_left,
    error_of,
    outcome_of,
)
from postroad.controller.pods.manifests import owned_by
from postroad.controller.pods.pipeline_children import PIPELINE as PIPELINE_POD
from postroad.controller.pods.task_jobs import COUNT, TASK
from postroad.controller.spec import task as spec
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import Finding, bad, good, shortened
from postroad.ports.kubernetes import Object

MAX_MESSAGE = 512

_STARTING = ("PodInitializing", "ContainerCreating")
"""Reasons for which the containers of a pod that starts wait."""

REPEATED = "repeated"
"""Name of the count, within `done`, of mails that the pod after a killed one counts once more."""


@dataclass(frozen=True, slots=True)
class TaskRun:
    """A Job as its status and its pods tell. `error`: why it failed; None while it goes on, and for
    one that succeeded. `waits`: why none of its pods works; None: one does, or it has ended."""

    name: str
    started: str | None
    finished: str | None = None
    matched: int | None = None
    done: int | None = None
    error: str | None = None
    waits: str | None = None

    def text(self, operation: str) -> str:
        """Return what a run did, in a sentence without any address."""
        counts = "" if self.done is None else f": {_mails(self.done)}"
        if self.matched is not None:
            of = "" if self.done is None else f"{self.done} of "
            counts = f": {of}{_mails(self.matched)}"
        reason = self.waits if self.error is None else self.error
        end = "" if reason is None else f"; {reason}"
        return shortened(f"{operation}{counts}{end}", MAX_MESSAGE)


def _mails(count: int) -> str:
    return f"{count} mail" if count == 1 else f"{count} mails"


def run_of(job: Object, pods: Sequence[Object]) -> TaskRun:
    """Return the run of a Job."""
    name, status = job["metadata"]["name"], job.get("status") or {}
    own = owned_by(job, pods)
    messages = [each for pod in own for each in _messages(pod)]
    counted = [_numbers(text) for which, text in messages if which == COUNT]
    changed = [_numbers(text) for which, text in messages if which != COUNT]
    matched = [each["matched"] for each in (*counted, *changed) if "matched" in each]
    done = [each for each in changed if "done" in each]
    outcome = outcome_of(job)
    return TaskRun(
        name=name,
        started=status.get("startTime"),
        finished=_finished(status) if outcome is not None else None,
        matched=max(matched, default=None),
        done=_together(done) if done else None,
        error=_error(job, messages) if outcome == "Failed" else None,
        waits=_why_none_works(name, own) if outcome is None else None,
    )


def _together(counted: Sequence[Mapping[str, int]]) -> int:
    """Return how many mails pods changed, one after the other."""
    repeated = [min(each.get(REPEATED, 0), each["done"]) for each in counted]
    return max(repeated) + sum(each["done"] for each in counted) - sum(repeated)


def latest(jobs: Sequence[Object]) -> Object | None:
    """Return the newest of the Jobs of a schedule that has ended."""
    ended = [each for each in jobs if outcome_of(each) is not None]
    return max(ended, key=lambda each: str(each["metadata"]["creationTimestamp"]), default=None)


def _why_none_works(job: str, pods: Sequence[Object]) -> str | None:
    """Return why no pod of a Job works; None: one does, or is about to."""
    left = [each for each in pods if _status(each).get("phase") not in ("Succeeded", "Failed")]
    if not left:
        return f"it has no pod: see `kubectl describe job {job}`"
    reasons = [_why_pending(each) for each in left]
    return None if None in reasons else reasons[0]


def _why_pending(pod: Object) -> str | None:
    status = _status(pod)
    for each in status.get("conditions") or []:
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return f"its pod is not scheduled: {each.get('message', '')}"
    for container in _containers(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason is not None and reason not in _STARTING:
            return f"its pod does not start: {reason} {waiting.get('message', '')}".rstrip()
    return None


def _status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return pod.get("status") or {}


def _containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in ("initContainerStatuses", "containerStatuses"):
        yield from _status(pod).get(name) or []


def _messages(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what containers of ours left, by the name of the container."""
    for container in _containers(pod):
        ended = (container.get("state") or {}).get("terminated")
        if ended is not None and container["name"] in (COUNT, TASK, PIPELINE_POD):
            yield container["name"], str(ended.get("message", ""))


def _numbers(text: str) -> dict[str, int]:
    """Return the counts of a message; of the pipeline's summary all together. The text is a pod's:
    what is no count that the CRD takes is left out."""
    found = document_left(text)
    counts = found.get("counts")
    if isinstance(counts, dict):
        found = {"done": sum(each for each in counts.values() if isinstance(each, int))}
    return {
        name: found[name]
        for name in ("matched", "done", REPEATED)
        if type(found.get(name)) is int and 0 <= found[name] <= MAX_NUMBER
    }


def _error(job: Object, messages: Sequence[tuple[str, str]]) -> str:
    named = [document_left(text).get("error") for _, text in messages]
    texts = [each for each in named if isinstance(each, str) and each]
    return texts[-1] if texts else error_of(job, messages[-1][1] if messages else None)


def _finished(status: Mapping[str, Any]) -> str | None:
    """Return when a Job ended; one that failed has no completion time."""
    ends = [
        each.get("lastTransitionTime")
        for each in status.get("conditions") or []
        if each["type"] in ("Complete", "Failed") and each["status"] == "True"
    ]
    return status.get("completionTime") or next(iter(ends), None)


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
    """True if what was made for a task has no owner, and is not being deleted. k9s makes a Job from
    a CronJob with an owner that is no controller."""
    metadata = made["metadata"]
    return "deletionTimestamp" not in metadata and not metadata.get("ownerReferences")


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


def why_stopped(found: Object, queue: Object | None) -> Finding:
    """Return why a task is stopped that is deleted, or whose MailQueue is. `queue`: the one that
    has its name now."""
    name, is_running = spec.queue_of_task(found).name, phase_of(found) == RUNNING
    if "deletionTimestamp" in found["metadata"]:
        reason, message = "Deleted", "it is deleted"
    elif queue is None and not is_running:
        reason = "QueueNotFound"
        message = f"there is no MailQueue {name} in the namespace: the task waits for it"
    else:
        waits = "" if is_running else ": the task waits for another one"
        is_there = queue is not None and "deletionTimestamp" not in queue["metadata"]
        also = ", and another MailQueue has its name" if is_there else waits
        reason, message = "QueueDeleted", f"MailQueue {name} is deleted{also}"
    return bad(condition.COMPLETE, reason, message, retryable=not is_running)


def is_for_another(made: Object, queue: str) -> bool:
    """True if a task was begun, or what carries it out was made, for another MailQueue than the one
    of this uid. One without the annotation was for a MailQueue that is not known."""
    return hash_in(made, BEGUN_FOR) not in (None, queue)


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
    oldest that waits for nothing but its MailQueue and its turn. Those by a schedule do not count,
    and one that is deleted does until it is stopped. Before a task that has begun itself goes no
    task that waits: that one waits for it.
    """
    beside = [
        each
        for each in others
        if each["metadata"]["uid"] != found["metadata"]["uid"]
        and spec.queue_of_task(each) == spec.queue_of_task(found)
        and each["spec"].get("schedule") is None
        and phase_of(each) not in ENDED
        and (phase_of(each) == RUNNING or "deletionTimestamp" not in each["metadata"])
    ]
    begun = [each for each in beside if _is_begun(each)]
    if begun or _is_begun(found):
        return min(begun, key=_age, default=None)
    waiting = [each for each in beside if _waits_for_its_turn(each) and _age(each) < _age(found)]
    return min(waiting, key=_age, default=None)


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
