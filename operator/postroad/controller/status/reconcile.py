"""One reconcile of a MailQueue: what it read, and its findings so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from postroad.controller.spec.queue_resource import Queue
from postroad.controller.status.status import Report
from postroad.errors import ResourceConflict

CONFLICT = ResourceConflict.__name__
"""The reason of a condition about an object that another claimant has."""


@dataclass(slots=True)
class ReconcileState:
    """One reconcile of a MailQueue: what it read, and its findings so far. `expected`: kinds and
    names of the children that are there unless another process deleted them. `waits`: a newer
    operator wants to replace pods, and has not replaced all of them yet. `has_rows`: the view holds
    something of the queue. `rewritten`: fields of children, by component, that another process
    keeps from the values that were applied."""

    queue: Queue
    before: Mapping[str, Any]
    report: Report
    configured: bool = False
    expected: frozenset[tuple[str, str]] = frozenset()
    waits: bool = False
    has_rows: bool = False
    rewritten: dict[str, list[str]] = field(default_factory=dict)
