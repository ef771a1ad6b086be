"""The spec of a MailQueueTask: one operation on a MailQueue, once or by a schedule.

`crds/mailqueuetasks.yaml` has the same in OpenAPI, with the same rules in CEL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, ValidationInfo, field_validator, model_validator

from postroad.controller.kubernetes.api import FIELD_MANAGER, MAIL_QUEUE, MAIL_QUEUE_TASK, Key
from postroad.controller.spec.parts import Model, Schedule, holds
from postroad.delivery_settings.patterns import Duration, ObjectName
from postroad.domain.queues.selection import Selector, check_selected
from postroad.errors import InvalidInput
from postroad.ports.mail_queue import Operation

ON_SELECTED = {each.value.capitalize(): each for each in Operation}
"""Operations on selected mails, by their names in a spec."""

COUNTED = ("Purge", *ON_SELECTED)
"""Operations whose mails can be counted first, and in place of a change."""

REPUBLISH, PIPELINE, ROTATE, EXPORT = "Republish", "Pipeline", "Rotate", "Export"

Text = Annotated[str, Field(min_length=1, max_length=1024)]
MAX_TTL = 366 * 24 * 3600

FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
"""Spark reads no names with _ or . in front, and .. would lead out of the queue's exports."""

ELSEWHERE = (
    "folder is one below the queue's exports: write names of letters, digits, '.', '_' and '-' "
    "that begin with a letter or a digit, with '/' between them; elsewhere writes "
    "`postroad pipeline export`"
)
Folder = Annotated[
    str,
    Field(min_length=1, max_length=200),
    holds(lambda each: FOLDER.fullmatch(each) is not None, ELSEWHERE),
]


class AttributeSelector(Model):
    """An attribute that a mail must have."""

    name: Text
    """Its name."""

    value: Annotated[str, Field(max_length=1024)]
    """Its value."""


class MailSelector(Model):
    """Mails that the operation is for: all fields must hold, which are those that the commands have
    as options. Of Requeue and Discard among dead letters, else among the mails that wait."""

    all: bool = False
    """True: every mail, on purpose; without any other field."""

    sender: Annotated[str, Field(min_length=1, max_length=320)] | None = None
    """The reverse-path; `<>` is the null one. Absent: any."""

    recipient: Annotated[str, Field(min_length=1, max_length=320)] | None = None
    """One of the recipients left. Absent: any."""

    name: Text | None = None
    """The mail's name. Absent: any."""

    domain: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """The domain of one of the recipients left. Absent: any."""

    older_than: Duration | None = None
    """Age since acceptance, such as 4h; of Republish the time for which a mail has been due.
    Absent: any."""

    id: (
        Annotated[str, Field(max_length=36, pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
        | None
    ) = None
    """The enqueue id. Absent: any."""

    attribute: AttributeSelector | None = None
    """An attribute. Absent: any."""

    @field_validator("sender", "recipient", "domain")
    @classmethod
    def _can_match(cls, value: str | None, info: ValidationInfo) -> str | None:
        try:
            if value is not None:
                check_selected(str(info.field_name), value)
        except InvalidInput as error:
            raise ValueError(error.explain()) from error
        return value

    @model_validator(mode="after")
    def _selects(self) -> MailSelector:
        if self.all == bool(self.given):
            raise ValueError("name the mails by a field such as sender, or write all: true alone")
        return self

    @property
    def given(self) -> frozenset[str]:
        """The fields that select."""
        return frozenset(
            each
            for each in type(self).model_fields
            if each != "all" and getattr(self, each) is not None
        )

    def selector(self, accepted_before: datetime | None) -> Selector:
        """Return the selector of these mails, of those that were accepted before a moment."""
        attribute = self.attribute
        return Selector(
            enqueue_id=None if self.id is None else UUID(self.id),
            name=self.name,
            sender="" if self.sender == "<>" else self.sender,
            recipient=self.recipient,
            domain=self.domain,
            older_than=self.older_than,
            attribute=None if attribute is None else (attribute.name, attribute.value),
            everything=self.all,
            accepted_before=accepted_before,
        )


class QueueReference(Model):
    """The MailQueue of the task, in its namespace."""

    name: ObjectName
    """Name of the MailQueue."""


class MailQueueTaskSpec(Model):
    """The operation, and the queue that it is for."""

    queue_ref: QueueReference
    """The MailQueue of the task, in its namespace. Cannot be changed."""

    operation: Literal[
        "Remove",
        "Flush",
        "Hold",
        "Release",
        "Requeue",
        "Expire",
        "Discard",
        "Purge",
        "Republish",
        "Maintain",
        "Rotate",
        "Export",
        "Pipeline",
    ]
    """Operation. Remove, Flush, Hold, Release, Expire: to selected mails that wait. Requeue,
    Discard: to selected dead letters. Purge: to all that wait, which are removed. Republish: due
    mail that the broker may have lost gets new messages. Maintain: a round of maintenance. Rotate:
    the queue gets another user at RabbitMQ. Export: the entries of the lake are written, as
    Parquet, into a folder of the queue's bucket. Pipeline: a job of spec.pipeline runs once."""

    selector: MailSelector | None = None
    """Mails that the operation is for. Required with the operations on selected mails, and with
    Republish, which takes olderThan alone."""

    job: (
        Literal["Archive", "Traffic", "Destinations", "Advise", "Ages", "Audit", "Forget"] | None
    ) = None
    """The job that Pipeline runs, with what spec.pipeline of the MailQueue has for it."""

    folder: Folder | None = None
    """Folder that Export writes into, such as audit/2026, below NAMESPACE.NAME/exports of the
    queue's bucket; each pod that writes makes one of its own there, which has the pod's name.
    Absent: directly below exports."""

    dry_run: bool = False
    """True: the selected mails are counted, and nothing is changed."""

    schedule: Schedule | None = None
    """Cron expression in UTC, as in a CronJob: the task is done again and again. Absent: once."""

    paused: bool = False
    """True: no run of the schedule begins; one that has begun goes on."""

    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=MAX_TTL)] | None = None
    """Seconds after its end in which the task is deleted, with its Job. Absent: it stays. Where a
    GitOps tool applies it again, it is done again."""

    @model_validator(mode="after")
    def _fits_the_operation(self) -> MailQueueTaskSpec:
        for is_broken, message in self._rules():
            if is_broken:
                raise ValueError(message)
        return self

    def _rules(self) -> tuple[tuple[bool, str], ...]:
        selects = self.operation in (*ON_SELECTED, REPUBLISH)
        given = self.selector.given if self.selector is not None else frozenset()
        is_scheduled = self.schedule is not None
        return (
            (selects and self.selector is None, NEEDS_SELECTOR),
            (not selects and self.selector is not None, TAKES_NO_SELECTOR),
            (self.operation == REPUBLISH and given != {"older_than"}, REPUBLISH_BY_AGE),
            ((self.operation == PIPELINE) != (self.job is not None), JOB_OF_PIPELINE),
            (self.operation != EXPORT and self.folder is not None, FOLDER_OF_EXPORT),
            (self.dry_run and self.operation not in COUNTED, NOT_COUNTED),
            (is_scheduled and self.operation == ROTATE, ROTATE_BY_PERIOD),
            (self.paused and not is_scheduled, PAUSES_SCHEDULE),
            (is_scheduled and self.ttl_seconds_after_finished is not None, NEVER_FINISHES),
        )


NEEDS_SELECTOR = "operation is for selected mails: write a selector, or selector: {all: true}"
TAKES_NO_SELECTOR = "selector has no effect on this operation: leave it out"
REPUBLISH_BY_AGE = "Republish selects by olderThan alone: write selector: {olderThan: 1h}"
JOB_OF_PIPELINE = "job goes with the operation Pipeline, which needs it: write job: Archive"
FOLDER_OF_EXPORT = "folder goes with the operation Export: leave it out"
NOT_COUNTED = "dryRun goes with operations whose mails are counted, such as Remove and Purge"
ROTATE_BY_PERIOD = (
    "schedule does not go with Rotate: write spec.rabbitmq.users.period of the QueueCluster"
)
PAUSES_SCHEDULE = "paused goes with schedule: leave it out"
NEVER_FINISHES = "ttlSecondsAfterFinished does not go with schedule: such a task never finishes"


@dataclass(frozen=True, slots=True)
class Task:
    """A MailQueueTask as read."""

    key: Key
    uid: str
    generation: int
    created: datetime
    spec: MailQueueTaskSpec

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Task:
        """Read a MailQueueTask. Raises: pydantic.ValidationError."""
        metadata = found["metadata"]
        return cls(
            Key(MAIL_QUEUE_TASK.name, metadata["namespace"], metadata["name"]),
            metadata["uid"],
            metadata["generation"],
            datetime.fromisoformat(metadata["creationTimestamp"]),
            MailQueueTaskSpec.model_validate(found["spec"]),
        )

    @property
    def accepted_before(self) -> datetime | None:
        """Mails that were accepted later are left alone, however often a pod of the task is killed
        and made anew; None for a schedule, of which each run takes its own time from the name of
        its Job. The API server's time is cut to seconds."""
        if self.spec.schedule is not None:
            return None
        return self.created + timedelta(seconds=1)


def queue_of_task(body: Mapping[str, Any]) -> Key:
    """Return the key of the MailQueue that a MailQueueTask refers to."""
    reference = body["spec"].get("queueRef") or {}
    return Key(MAIL_QUEUE.name, body["metadata"]["namespace"], reference.get("name", ""))


def manager_of(found: Mapping[str, Any]) -> str:
    """Return the field manager that wrote the spec of a task last; empty where that is unknown. The
    API server records no user in an object; its audit log does."""
    writers = [
        entry
        for entry in found["metadata"].get("managedFields") or []
        if entry.get("manager") != FIELD_MANAGER and "f:spec" in (entry.get("fieldsV1") or {})
    ]
    writers.sort(key=lambda each: str(each.get("time")))
    return str(writers[-1]["manager"]) if writers else ""
