"""The outcome of the runs of a MailQueueTask, from its Jobs and their pods: pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from postroad.controller.mailqueue.pipeline_runs import MAX_NUMBER, error_of, outcome_of
from postroad.controller.pods.jobs import JOB_OF_POD
from postroad.controller.pods.pipeline_children import PIPELINE as PIPELINE_POD
from postroad.controller.pods.task_jobs import COUNT, TASK
from postroad.controller.status.conditions import shortened
from postroad.ports.kubernetes import Object

MAX_MESSAGE = 512

_STARTING = ("PodInitializing", "ContainerCreating")
"""Reasons for which the containers of a pod that starts wait."""

COUNTED_ANEW = "Purge"
"""The operation whose pods each count all that the task has removed."""


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


def run_of(job: Object, pods: Sequence[Object], operation: str) -> TaskRun:
    """Return the run of a Job."""
    name, status = job["metadata"]["name"], job.get("status") or {}
    own = [each for each in pods if each["metadata"]["labels"].get(JOB_OF_POD) == name]
    messages = [each for pod in own for each in _messages(pod)]
    counted = [_numbers(text) for which, text in messages if which == COUNT]
    changed = [_numbers(text) for which, text in messages if which != COUNT]
    matched = [each["matched"] for each in (*counted, *changed) if "matched" in each]
    done = [each["done"] for each in changed if "done" in each]
    outcome = outcome_of(job)
    return TaskRun(
        name=name,
        started=status.get("startTime"),
        finished=_finished(status) if outcome is not None else None,
        matched=max(matched, default=None),
        done=(max(done) if operation == COUNTED_ANEW else sum(done)) if done else None,
        error=_error(job, messages) if outcome == "Failed" else None,
        waits=_why_none_works(name, own) if outcome is None else None,
    )


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
    for field in ("initContainerStatuses", "containerStatuses"):
        yield from _status(pod).get(field) or []


def _messages(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what containers of ours left, by the name of the container."""
    for container in _containers(pod):
        ended = (container.get("state") or {}).get("terminated")
        if ended is not None and container["name"] in (COUNT, TASK, PIPELINE_POD):
            yield container["name"], str(ended.get("message", ""))


def _numbers(text: str) -> dict[str, int]:
    """Return the counts of a message; of the pipeline's summary all together. The text is a pod's:
    what is no count that the CRD takes is left out."""
    found = _document(text)
    counts = found.get("counts")
    if isinstance(counts, dict):
        found = {"done": sum(each for each in counts.values() if isinstance(each, int))}
    return {
        name: found[name]
        for name in ("matched", "done")
        if type(found.get(name)) is int and 0 <= found[name] <= MAX_NUMBER
    }


def _document(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _error(job: Object, messages: Sequence[tuple[str, str]]) -> str:
    named = [str(found["error"]) for _, text in messages if (found := _document(text)).get("error")]
    return named[-1] if named else error_of(job, messages[-1][1] if messages else None)


def _finished(status: Mapping[str, Any]) -> str | None:
    """Return when a Job ended; one that failed has no completion time."""
    ends = [
        each.get("lastTransitionTime")
        for each in status.get("conditions") or []
        if each["type"] in ("Complete", "Failed") and each["status"] == "True"
    ]
    return status.get("completionTime") or next(iter(ends), None)
