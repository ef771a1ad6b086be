"""Kubernetes Events: one for each change that an administrator acts on, none for a resync.

A change is a difference between the status before and after, so that a restart of the operator
repeats no Event. Events never hold addresses or credentials.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from postroad.controller.conditions import (
    PAUSED_BY_USER,
    PENDING,
    PODS_NOT_READY,
    READY,
    shortened,
)
from postroad.controller.drift import hash_of

NORMAL, WARNING = "Normal", "Warning"
LONGEST_NOTE = 1000
"""Characters of an Event's note; the API server allows 1024 bytes."""

LONGEST_NAME = 253 - len(".") - 16
"""Characters of a resource's name at the begin of the Event's, which has a hash behind it."""

PROGRESS = frozenset({PENDING, "Deleting", "InUse", PODS_NOT_READY, PAUSED_BY_USER})
"""Reasons that every queue has while it is created or deleted; they get no Event."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """An Event to post: `reason` is one word, `note` a sentence, `action` what the operator was
    doing. `once`: the Event's name is fixed, so that posting it again after a crash adds none."""

    kind: str
    reason: str
    note: str
    action: str = "Reconcile"
    once: bool = False


def announcements(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Announcement]:
    """Return the Events of a change of the status: the resource became ready; it is not ready, or
    for another reason; a configuration was accepted."""
    found = []
    was, is_now = _ready(before), _ready(after)
    if is_now.get("status") == "True":
        if was.get("status") != "True":
            found.append(Announcement(NORMAL, "Ready", is_now["message"]))
    elif is_now and is_now["reason"] not in PROGRESS and _kind(was) != _kind(is_now):
        found.append(Announcement(WARNING, is_now["reason"], is_now["message"]))
    accepted, earlier = after.get("configuration") or {}, before.get("configuration") or {}
    if accepted.get("version") != earlier.get("version"):
        note = (
            f"version {accepted['version']}: sliceWindow {accepted['sliceWindow']}, "
            f"bucketCount {accepted['bucketCount']}, "
            f"updateBrowseStartPace {accepted['updateBrowseStartPace']}"
        )
        found.append(Announcement(NORMAL, "ConfigurationAccepted", note))
    return found


def _kind(condition: Mapping[str, Any]) -> tuple[object, object]:
    return condition.get("status"), condition.get("reason")


def _ready(status: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = status.get("conditions") or []
    return next((each for each in conditions if each["type"] == READY), {})


def event_object(
    about: Mapping[str, Any], announcement: Announcement, now: datetime
) -> dict[str, Any]:
    """Return the Event to create."""
    metadata = about["metadata"]
    once = hash_of([metadata["uid"], announcement.reason])
    begin = metadata["name"][:LONGEST_NAME].rstrip("-.")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{begin}.{once if announcement.once else uuid4().hex[:16]}",
            "namespace": metadata["namespace"],
        },
        "eventTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": announcement.kind,
        "reason": announcement.reason,
        "action": announcement.action,
        "note": _within_bytes(shortened(announcement.note, LONGEST_NOTE)),
        "regarding": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "reportingController": "postroad.dev/operator",
        "reportingInstance": os.environ.get("HOSTNAME") or socket.gethostname(),
    }


def _within_bytes(note: str) -> str:
    return note.encode()[:1024].decode(errors="ignore")
