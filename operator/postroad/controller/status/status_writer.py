"""Writes a resource's status when it differs, and Events about the difference.

An Event that is repeated is one object, which counts how often it happened (`series`): its name
follows from what it reports. Of all Events about an object, a burst is posted and then few, so that
what flaps for a day costs the API server no more. The numbers are those of client-go's recorder.

A reconcile that fails writes no status, and the one from before may be wrong by then: its resource
gets Ready=Unknown, an Event where the API server takes no status, and a metric."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from postroad.controller.kubernetes.api import EVENT, MAIL_QUEUE, MAIL_QUEUE_TASK, Key, log_action
from postroad.controller.kubernetes.drift import hash_of
from postroad.controller.status.conditions import (
    COMPLETE,
    PAUSED_BY_USER,
    PENDING,
    PIPELINE_READY,
    PODS_NOT_READY,
    READY,
    RECONCILING,
    RUNNING,
    STALLED,
    UNAVAILABLE,
    Finding,
    Report,
    Status,
    Truth,
    changed_conditions,
    composed,
    condition_of,
    failed,
    shortened,
    unexpected,
)
from postroad.domain.values.instants import parse_duration
from postroad.errors import (
    KubernetesConflict,
    KubernetesError,
    KubernetesUnavailable,
    LeadershipLost,
    PostroadError,
)
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kind, Kubernetes, Object
from postroad.telemetry import logs, metrics
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
    for state, name in STATES.items():
        if name in status:
            yield state, status[name]


def _is_run_failed(status: Mapping[str, Any]) -> bool | None:
    """Return whether the last run of a schedule failed; None without one, or while something else
    is the matter."""
    if status.get("phase") != "Scheduled":
        return None
    ends = {"Completed": False, "RunFailed": True}
    return ends.get(condition_of(status, COMPLETE).get("reason", ""))


def _of_jobs(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, float]]:
    for each in entries:
        job = each["job"]
        if "lastSuccess" in each:
            yield job, "success", datetime.fromisoformat(each["lastSuccess"]).timestamp()
        if "lag" in each:
            yield job, "lag", parse_duration(each["lag"]).total_seconds()
        if "findings" in each:
            yield job, "findings", each["findings"]


BURST = 25
"""Posts about one object before they are fewer."""

REFILL = timedelta(minutes=5)
"""After so long one more is posted."""

TOGETHER = timedelta(minutes=1)
"""Within so long the repetitions of an Event are posted together."""

MAX_NAMES = 100
"""Events about an object that are counted; a further one begins the counts anew."""


@dataclass(slots=True)
class _Posts:
    """Posts that an object has left, and since when; the Events about it: when each was posted last
    (None: never), and how often it happened since."""

    left: float
    at: timedelta
    events: dict[str, tuple[timedelta | None, int]] = field(default_factory=dict)


class EventPace:
    """Paces the Events of each object, by its uid."""

    def __init__(self) -> None:
        self._objects: dict[str, _Posts] = {}

    def due(self, uid: str, name: str, now: timedelta) -> int:
        """Count an Event; return how often it happened since it was posted, 0: not to post now."""
        posts = self._objects.setdefault(uid, _Posts(BURST, now))
        if len(posts.events) > MAX_NAMES:
            posts.events.clear()
        posted_at, times = posts.events.get(name, (None, 0))
        posts.left, posts.at = min(BURST, posts.left + (now - posts.at) / REFILL), now
        is_soon = posted_at is not None and now - posted_at < TOGETHER
        if is_soon or posts.left < 1:
            posts.events[name] = posted_at, times + 1
            return 0
        posts.left -= 1
        posts.events[name] = now, 0
        return times + 1

    def forget(self, uid: str) -> None:
        """Forget an object that is gone. Idempotent."""
        self._objects.pop(uid, None)


_log = logs.logger("controller")


SHORTENED_AGAIN = timedelta(hours=1)
"""After so long a status that was shortened is written again, because the CRD may be newer."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """Fields that the API server dropped of a status, whose CRD is older than the operator: fields,
    with what was written and what was kept (None: nothing)."""

    fields: Mapping[str, tuple[Any, Any]]
    at: timedelta

    def expected(self, after: Status) -> Status:
        """Return what the API server would keep of a status."""
        result = dict(after)
        for name, (written, kept) in self.fields.items():
            if kept is None:
                result.pop(name, None)
            elif result.get(name) == written:
                result[name] = kept
        return result


class StatusWriter:
    """Writes statuses and Events of resources."""

    def __init__(self, api: Kubernetes, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._shortened: dict[str, Shortened] = {}
        self._pace = EventPace()
        self.states = ResourceStates()

    def forget(self, uid: str) -> None:
        """Forget a resource that is gone. Idempotent."""
        self._shortened.pop(uid, None)
        self._pace.forget(uid)
        self.states.forget(uid)

    async def write(self, kind: Kind, found: Object, after: Status) -> Object:
        """Write the status if it differs, to the version that was read; post its Events; return the
        resource as it is then. Raises: KubernetesConflict, KubernetesError."""
        before, uid = found.get("status") or {}, found["metadata"]["uid"]
        self.states.record(found, after)
        now = self._clock.elapsed()
        shortened = self._shortened.get(uid)
        expected = shortened.expected(after) if shortened else after
        if after == before or (
            shortened and expected == before and now - shortened.at < SHORTENED_AGAIN
        ):
            return found
        written = await self._api.replace_status(kind, {**found, "status": after})
        if written is None:
            return found
        for condition, was, is_now in changed_conditions(before, after):
            log_action("changed a condition", condition=condition, was=was, now=is_now)
        kept = written.get("status") or {}
        if kept != after:
            lost = {
                field: (value, kept.get(field))
                for field, value in after.items()
                if kept.get(field) != value
            }
            self._shortened[uid] = Shortened(lost, now)
            if kept != expected:
                _log.warning("the CRD dropped a part of the status", kind=kind.name, fields=[*lost])
        shares = kind is MAIL_QUEUE
        await self.announce(written, announcements(before, after, shares_servers=shares))
        return written

    async def report(self, kind: Kind, found: Object, report: Report) -> Object:
        """Write the status after a report, as `write` does."""
        before, generation = found.get("status") or {}, found["metadata"]["generation"]
        return await self.write(
            kind, found, composed(before, report, generation, self._clock.now())
        )

    async def announce(
        self, about: Object, found: Iterable[Announcement], *, required: bool = False
    ) -> None:
        """Post Events; log those that are not taken, as in a namespace under deletion. Raises:
        KubernetesUnavailable where they are `required`, after which the call is repeated."""
        for each in found:
            try:
                await self._post(about, each)
            except KubernetesError as error:
                if required and isinstance(error, KubernetesUnavailable):
                    raise
                _log.info("the API server refused an Event", reason=each.reason, error=str(error))

    async def _post(self, about: Object, announcement: Announcement) -> None:
        wanted = event_object(about, announcement, self._clock.now())
        uid, name = about["metadata"]["uid"], wanted["metadata"]["name"]
        times = announcement.once or self._pace.due(uid, name, self._clock.elapsed())
        if not times:
            return
        try:
            await self._api.create(EVENT, wanted)
        except KubernetesConflict:
            if not announcement.once:
                await self._count(wanted, times)

    async def _count(self, wanted: Object, times: int) -> None:
        """Count more repetitions of an Event. The API server lets no other field change."""
        place = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        found = await self._api.get(EVENT, *place)
        if found is None:
            return  # it expired meanwhile
        count = (found.get("series") or {"count": 1})["count"] + times
        change = {
            "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
            "series": {"count": count, "lastObservedTime": wanted["eventTime"]},
        }
        await self._api.patch(EVENT, *place, change)


NORMAL, WARNING = "Normal", "Warning"
MAX_NOTE = 1000
"""Characters of an Event's note; the API server allows 1024 bytes."""

MAX_NAME = 253 - len(".") - 16
"""Characters of a resource's name at the begin of the Event's, which has a hash behind it."""

WITHOUT_NAMESPACE = "default"
"""Namespace in which the API server takes Events about objects that are in no namespace."""

PROGRESS = frozenset({PENDING, RUNNING, "Deleting", "InUse", PODS_NOT_READY, PAUSED_BY_USER})
"""Reasons that every resource has while it is made, done or deleted; they get no Event."""

SERVERS_AWAY = frozenset(each.__name__ for each in UNAVAILABLE.values())


@dataclass(frozen=True, slots=True)
class Announcement:
    """An Event to post: `reason` is one word, `note` a sentence, `action` what the operator was
    doing. `once`: it happens once, so that posting it again after a crash counts no repetition."""

    kind: str
    reason: str
    note: str
    action: str = "Reconcile"
    once: bool = False


def announcements(
    before: Mapping[str, Any], after: Mapping[str, Any], *, shares_servers: bool = False
) -> list[Announcement]:
    """Return the Events of a change of the status: the resource became ready; it is not ready, or
    for another reason; a configuration was accepted. A server that a MailQueue shares with others
    (`shares_servers`) goes away and comes back in Events of the QueueCluster."""
    found = []
    was, is_now = condition_of(before, READY), condition_of(after, READY)
    about = was if is_now.get("status") == "True" else is_now
    if shares_servers and about.get("reason") in SERVERS_AWAY:
        pass
    elif is_now.get("status") == "True":
        if was.get("status") != "True":
            found.append(Announcement(NORMAL, "Ready", is_now["message"]))
    elif is_now and is_now["reason"] not in PROGRESS and _kind(was) != _kind(is_now):
        found.append(Announcement(WARNING, is_now["reason"], is_now["message"]))
    found += _about_pipeline(
        condition_of(before, PIPELINE_READY), condition_of(after, PIPELINE_READY)
    )
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


def _about_pipeline(was: Mapping[str, Any], is_now: Mapping[str, Any]) -> Iterator[Announcement]:
    """Yield that jobs fail, or succeed again."""
    if is_now.get("status") == "False" and _kind(was) != _kind(is_now):
        yield Announcement(WARNING, is_now["reason"], f"pipeline: {is_now['message']}")
    elif is_now.get("status") == "True" and was.get("status") == "False":
        yield Announcement(NORMAL, "PipelineReady", is_now["message"])


def event_object(
    about: Mapping[str, Any], announcement: Announcement, now: datetime
) -> dict[str, Any]:
    metadata = about["metadata"]
    reported = [metadata["uid"], announcement.reason]
    if not announcement.once:
        reported += [announcement.kind, announcement.action, announcement.note]
    begin = metadata["name"][:MAX_NAME].rstrip("-.")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{begin}.{hash_of(reported)}",
            "namespace": metadata.get("namespace") or WITHOUT_NAMESPACE,
        },
        "eventTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": announcement.kind,
        "reason": announcement.reason,
        "action": announcement.action,
        "note": _within_bytes(shortened(announcement.note, MAX_NOTE)),
        "regarding": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            **({"namespace": metadata["namespace"]} if "namespace" in metadata else {}),
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "reportingController": "postroad.dev/operator",
        "reportingInstance": os.environ.get("HOSTNAME") or socket.gethostname(),
    }


def _within_bytes(note: str) -> str:
    return note.encode()[:1024].decode(errors="ignore")


MAX_UNREPORTED = 3
"""Reconciles in a row that fail before the status reports it: a moment without answers, or another
process that writes meanwhile, is over by then."""


class Failures:
    """Since when the reconciles of each resource fail, or lack answers of the API server."""

    def __init__(self, status_writer: StatusWriter, clock: Clock) -> None:
        self._status_writer = status_writer
        self._clock = clock
        self._since: dict[Key, datetime] = {}
        self._in_a_row: Counter[Key] = Counter()

    def has(self, key: Key) -> bool:
        """True if the last reconcile failed, or lacked answers."""
        return key in self._since

    def lasts(self, key: Key) -> bool:
        """True if reconciles have failed so often that the status is to report it."""
        return self._in_a_row[key] >= MAX_UNREPORTED

    def samples(self) -> Iterator[Sample]:
        """Yield for each resource since when its reconciles fail."""
        for key, since in self._since.items():
            yield (key.kind, key.namespace, key.name), since.timestamp()

    def add(self, key: Key) -> None:
        """Count a reconcile that failed."""
        self._since.setdefault(key, self._clock.now())
        self._in_a_row[key] += 1

    def end(self, key: Key, *, lacked_answers: bool = False) -> None:
        """Note a reconcile that wrote what it found, or a resource that is gone."""
        self._in_a_row.pop(key, None)
        if lacked_answers:
            self._since.setdefault(key, self._clock.now())
        else:
            self._since.pop(key, None)

    async def report(self, kind: Kind, found: Object, error: Exception) -> None:
        """Write Ready=Unknown with the error into a status. Its other conditions stay: they are of
        the generation that they name."""
        finding = _finding(error)
        trying = replace(finding, condition=RECONCILING, truth=Truth.TRUE)
        report = Report(
            [replace(finding, truth=Truth.UNKNOWN), trying],
            {"observedGeneration": (found.get("status") or {}).get("observedGeneration")},
            replaced=frozenset({STALLED}),
        )
        try:
            await self._status_writer.report(kind, found, report)
        except LeadershipLost:
            raise
        except Exception as refused:
            _log.warning("the API server took no status", kind=kind.name, error=str(refused))
            metrics.UNWRITTEN_STATUSES.labels(kind.name).inc()
            note = f"the status is not of now: {_finding(refused).message}; {finding.message}"
            event = Announcement(WARNING, "StatusNotWritten", note)
            await self._status_writer.announce(found, [event])


def _finding(error: Exception) -> Finding:
    return failed(READY, error) if isinstance(error, PostroadError) else unexpected(READY, error)
