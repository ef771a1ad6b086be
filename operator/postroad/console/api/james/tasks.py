"""Tasks as James' WebAdmin has them: each works in the console's process, and ends with it."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

from postroad.console.api.access import QueueAccess, audited
from postroad.console.api.james.answers import date_of
from postroad.console.operations import MAX_RUNNING
from postroad.console.remembered_work import RememberedWork
from postroad.domain.values.instants import rfc3339
from postroad.errors import PostroadError
from postroad.ports.clock import Clock
from postroad.problems import Problem
from postroad.telemetry.logs import logger

_log = logger("console")

Details = dict[str, Any]
"""Additional information of a task, in the words of James."""

ADDRESSES = frozenset(("sender", "recipient"))
"""Details that are addresses of mail."""


class TaskStatus(StrEnum):
    """Status of a task. Tasks begin at once, so that James' `waiting` is never seen."""

    WAITING = "waiting"
    IN_PROGRESS = "inProgress"
    CANCEL_REQUESTED = "canceledRequested"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"


@dataclass(eq=False, slots=True)
class JamesTask:
    """A task on a queue of a namespace. `details`: None until its work knows some."""

    namespace: str
    who: str
    type: str
    began_at: datetime
    id: UUID = field(default_factory=uuid4)
    status: TaskStatus = TaskStatus.IN_PROGRESS
    details: Details | None = None
    ended_at: datetime | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def dates(self) -> dict[str, datetime]:
        """Return the instants of its life, by the words of James."""
        found = {"submitted": self.began_at, "started": self.began_at}
        return found | ({str(self.status): self.ended_at} if self.ended_at else {})

    def document(self, *, has_addresses: bool) -> dict[str, Any]:
        """Return the task as James does, or without addresses of mail."""
        hidden = set() if has_addresses else ADDRESSES & (self.details or {}).keys()
        is_cancelled = self.status in (TaskStatus.CANCELED, TaskStatus.CANCEL_REQUESTED)
        dates = {f"{what}Date": date_of(moment) for what, moment in self.dates().items()}
        dates["submitDate"] = dates.pop("submittedDate")
        return {
            "taskId": str(self.id),
            "type": self.type,
            "status": self.status.value,
            "submittedFrom": platform.node(),
            "executedOn": platform.node(),
            "cancelledFrom": platform.node() if is_cancelled else None,
            "additionalInformation": self.details and {**self.details, **dict.fromkeys(hidden)},
            **dates,
        }


class JamesTasks:
    """The tasks of a console, the last ones that were begun first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept = RememberedWork[JamesTask](lambda each: each.ended_at is not None)
        self._busy = Counter[str]()
        self._works: dict[UUID, asyncio.Task[None]] = {}

    def of(self, namespace: str) -> Iterator[JamesTask]:
        return self._kept.of(namespace)

    def find(self, namespace: str, task_id: UUID) -> JamesTask | None:
        return self._kept.find(namespace, task_id)

    def begin(
        self, at: QueueAccess, kind: str, work: Callable[[JamesTask], Awaitable[Details]]
    ) -> JamesTask:
        """Begin a task on a queue. `work` returns its last details. Raises: Problem where too many
        run."""
        who, namespace = at.who.name, at.on.name.namespace
        if self._busy[who] >= MAX_RUNNING:
            raise Problem(429, f"{MAX_RUNNING} tasks are under way: wait for the end of one")
        self._kept.make_room(namespace)
        made = JamesTask(namespace, who, kind, self._clock.now())
        self._kept.add(namespace, made.id, made)
        self._busy[who] += 1
        audited(at, kind, id=str(made.id))
        self._works[made.id] = asyncio.create_task(self._run(made, work), name=kind)
        return made

    def cancel(self, task: JamesTask) -> None:
        """Cancel a task that works; what it has changed stays so."""
        if (work := self._works.get(task.id)) is not None:
            task.status = TaskStatus.CANCEL_REQUESTED
            work.cancel()

    async def _run(self, task: JamesTask, work: Callable[[JamesTask], Awaitable[Details]]) -> None:
        end = TaskStatus.FAILED
        try:
            task.details = await work(task)
            end = TaskStatus.COMPLETED
        except asyncio.CancelledError:
            end = TaskStatus.CANCELED
            raise
        except PostroadError as error:
            _log.warning("a task failed", id=str(task.id), error=error.explain())
        except Exception:
            _log.exception("a task failed", id=str(task.id))
        finally:
            del self._works[task.id]
            self._busy -= Counter((task.who,))
            task.status, task.ended_at = end, self._clock.now()
            if task.details is not None:
                task.details["timestamp"] = rfc3339(task.ended_at)
            task.ended.set()
