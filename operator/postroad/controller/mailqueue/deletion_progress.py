"""Progress of a deletion, as the status has it: pure.

The status is all that an operator needs to go on with a deletion that another one began. It asks
no server again about a part that is done; the servers show how far the other parts are.

Confirmation of the deletion of mail that waits: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from postroad.controller.kubernetes.api import CONFIRM_DELETION, FORCE_DELETION
from postroad.controller.status.conditions import shortened, timestamp
from postroad.distributed.maintenance.erasure import SERVERS, ErasureStep, Part
from postroad.domain.queues.names import QueueName
from postroad.domain.values.text import api_name
from postroad.errors import BucketNotOwned, PostroadError, ResourceConflict
from postroad.ports.kubernetes import Object

SOON, LATEST = timedelta(seconds=3), timedelta(minutes=1)
"""Bounds of the time until a deletion that a server blocks is tried again."""

MAX_WHY = 500
"""Characters of one error."""

OTHERS = (BucketNotOwned, ResourceConflict)
"""The errors about objects of another claimant or view."""


MAX_APART = timedelta(hours=1)
"""By which the operator's clock may be behind the API server's."""


def without_progress_of_a_backup(found: Object) -> Object:
    """Return a MailQueue without the progress of a deletion that began before this one: a restore
    brought it back, and mail waits of which it says that all was asked and much is done."""
    status, deleted = found.get("status") or {}, found["metadata"].get("deletionTimestamp")
    if deleted is None or "deletion" not in status:
        return found
    began = datetime.fromisoformat(status["deletion"]["beganAt"])
    if began >= datetime.fromisoformat(deleted) - MAX_APART:
        return found
    return {**found, "status": {name: each for name, each in status.items() if name != "deletion"}}


@dataclass(frozen=True, slots=True)
class DeletionProgress:
    """`left_behind`: the parts that stay because another claimant has them, with the reasons.
    `blocked`: the errors of the last step, by part."""

    began_at: datetime
    progressed_at: datetime
    done: tuple[Part, ...] = ()
    objects: int = 0
    rows: int = 0
    left_behind: tuple[tuple[Part, str], ...] = ()
    blocked: tuple[tuple[Part, str], ...] = ()
    is_stuck: bool = False
    """True if each part that is blocked needs an administrator."""

    @classmethod
    def of(cls, status: Mapping[str, Any], now: datetime) -> DeletionProgress:
        """Return the progress that a status has; that of a deletion which begins now without."""
        found = status.get("deletion")
        if found is None:
            return cls(now, now)
        return cls(
            began_at=datetime.fromisoformat(found["beganAt"]),
            progressed_at=datetime.fromisoformat(found["progressedAt"]),
            done=tuple(Part(each.lower()) for each in found.get("done", ())),
            objects=found.get("objects", 0),
            rows=found.get("rows", 0),
            left_behind=_parts(found.get("leftBehind", ())),
            blocked=_parts(found.get("blockedBy", ())),
        )

    def as_field(self) -> dict[str, Any]:
        """Return the progress as a field of the status."""
        return {
            "beganAt": timestamp(self.began_at),
            "progressedAt": timestamp(self.progressed_at),
            "done": [api_name(each) for each in self.done],
            "objects": self.objects,
            "rows": self.rows,
            "leftBehind": _entries(self.left_behind),
            "blockedBy": _entries(self.blocked),
        }

    @property
    def is_over(self) -> bool:
        """True if everything is gone, or stays by rule."""
        return len(self.done) == len(Part)

    def after(self, steps: Mapping[Part, ErasureStep], now: datetime) -> DeletionProgress:
        """Return the progress after a step. A part that another claimant has counts as done."""
        errors = {part: each.error for part, each in steps.items() if each.error is not None}
        foreign = {part: why(each) for part, each in errors.items() if isinstance(each, OTHERS)}
        ended = [part for part, each in steps.items() if each.is_done or part in foreign]
        errors = {part: each for part, each in errors.items() if part not in foreign}
        moved = ended or any(each.count or part not in errors for part, each in steps.items())
        return replace(
            self,
            progressed_at=now if moved else self.progressed_at,
            done=(*self.done, *ended),
            objects=self.objects + _count(steps, Part.BYTES),
            rows=self.rows + _count(steps, Part.ROWS),
            left_behind=(*self.left_behind, *foreign.items()),
            blocked=tuple((part, why(error)) for part, error in errors.items()),
            is_stuck=bool(errors) and not any(each.transient for each in errors.values()),
        )

    def left_to_others(self, reason: str) -> DeletionProgress:
        """Return the progress where another claimant has all parts that are left."""
        rest = tuple((each, reason) for each in Part if each not in self.done)
        return replace(self, left_behind=(*self.left_behind, *rest))

    def message(self) -> str:
        """Return what is deleted, and what holds it up, for a condition."""
        message = f"{self.objects} objects and {self.rows} rows are deleted so far"
        if self.done:
            message += f"; done: {', '.join(self.done)}"
        for part, text in self.blocked:
            message += f"; {SERVERS[part]} blocks the {part}: {text}"
        return message

    def left(self) -> dict[str, str]:
        """Return what would be left if it ended now, each part with the reason."""
        return {part.value: text for part, text in (*self.blocked, *self.left_behind)}

    def retry(self, now: datetime) -> timedelta:
        """Return after how long to go on: at once, unless a server holds it up."""
        if not self.blocked:
            return timedelta(0)
        return min(max((now - self.progressed_at) / 4, SOON), LATEST)


def named(part: Part, name: QueueName, bucket: str) -> str:
    """Return what a part is, for the log."""
    return {
        Part.MESSAGES: f"RabbitMQ exchange {name.exchange} and its queues",
        Part.BYTES: f"objects {name}/ in bucket {bucket}",
        Part.ROWS: f"rows of {name} in Cassandra",
        Part.HISTORY: f"limits and configuration history of {name} in Cassandra",
    }[part]


def why(error: PostroadError) -> str:
    """Return an error as a deletion reports it."""
    return shortened(error.explain(), MAX_WHY)


def _parts(entries: Iterable[Mapping[str, str]]) -> tuple[tuple[Part, str], ...]:
    return tuple((Part(each["part"].lower()), each["message"]) for each in entries)


def _entries(parts: Iterable[tuple[Part, str]]) -> list[dict[str, str]]:
    return [
        {"part": api_name(part), "server": SERVERS[part], "message": text} for part, text in parts
    ]


def _count(steps: Mapping[Part, ErasureStep], part: Part) -> int:
    return steps[part].count if part in steps else 0


def is_confirmed(found: Mapping[str, Any], namespace: Mapping[str, Any] | None) -> bool:
    """True if the MailQueue, or its namespace for all in it, has the confirming annotation: each
    with its own name, so that an annotation which is copied confirms nothing."""
    return is_forced(found) or any(
        _annotations(each).get(CONFIRM_DELETION) == each["metadata"]["name"]
        for each in (found, namespace)
        if each is not None
    )


def is_forced(found: Mapping[str, Any]) -> bool:
    """True if an administrator lets the deletion end with what can be deleted now."""
    name: str = found["metadata"]["name"]
    return _annotations(found).get(FORCE_DELETION) == name


def answers(found: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the annotations that a deletion depends on."""
    given = _annotations(found)
    return given.get(CONFIRM_DELETION), given.get(FORCE_DELETION)


def how_to_confirm(name: QueueName, *, in_namespace: bool) -> str:
    """Return the commands that decide about mail that waits. `in_namespace`: the namespace is
    deleted, which confirms or keeps all of its queues alike."""
    confirm = f"`kubectl annotate mailqueue {name.name} -n {name.namespace}"
    text = f"{confirm} {CONFIRM_DELETION}={name.name}` deletes them"
    if in_namespace:
        text += (
            f", `kubectl annotate namespace {name.namespace} {CONFIRM_DELETION}={name.namespace}` "
            "those of all queues in the namespace"
        )
    keep = '\'{"spec": {"deletionPolicy": "Retain"}}\''
    return (
        f"{text}; `kubectl patch mailqueue {name.name} -n {name.namespace} --type merge -p {keep}` "
        "keeps them"
    )


def how_to_force(namespace: str, name: str, list_: str) -> str:
    """Return how to end a deletion although something is left. `list_`: where that is listed."""
    command = f"kubectl annotate mailqueue {name} -n {namespace} {FORCE_DELETION}={name}"
    return f"`{command}` ends the deletion, and lists what is left in {list_}"


def _annotations(found: Mapping[str, Any]) -> Mapping[str, str]:
    annotations: Mapping[str, str] = found["metadata"].get("annotations") or {}
    return annotations
