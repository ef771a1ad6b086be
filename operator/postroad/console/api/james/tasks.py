"""Tasks as James' WebAdmin has them: each works in the console's process, and ends with it."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

from postroad.console.api.access import QueueAccess, audited
from postroad.console.api.james.answers import date_of
from postroad.console.operations import MAX_KEPT, MAX_RUNNING
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
        self._kept: dict[UUID, JamesTask] = {}
        self._works: dict[UUID, asyncio.Task[None]] = {}

    def of(self, namespace: str) -> Iterator[JamesTask]:
        return (each for each in reversed(self._kept.values()) if each.namespace == namespace)

    def find(self, namespace: str, task_id: UUID) -> JamesTask | None:
        found = self._kept.get(task_id)
        return found if found is not None and found.namespace == namespace else None

    def begin(
        self, at: QueueAccess, kind: str, work: Callable[[JamesTask], Awaitable[Details]]
    ) -> JamesTask:
        """Begin a task on a queue. `work` returns its last details. Raises: Problem where too many
        run."""
        who = at.who.name
        if sum(self._kept[each].who == who for each in self._works) >= MAX_RUNNING:
            raise Problem(429, f"{MAX_RUNNING} tasks are under way: wait for the end of one")
        if len(self._kept) >= MAX_KEPT:
            ended = next((key for key, each in self._kept.items() if each.ended_at), None)
            if ended is None:
                raise Problem(429, f"{MAX_KEPT} tasks are under way: wait for the end of one")
            del self._kept[ended]
        made = JamesTask(at.on.name.namespace, who, kind, self._clock.now())
        self._kept[made.id] = made
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
            task.status, task.ended_at = end, self._clock.now()
            if task.details is not None:
                task.details["timestamp"] = rfc3339(task.ended_at)
            task.ended.set()
