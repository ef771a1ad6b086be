"""Carries out a MailQueue's deletion policy, step by step until all is gone.

A step is a few seconds; then other resources are reconciled. How far the deletion is stands in the
status, so that another operator goes on. Nothing ends it early but an administrator's annotation,
after which what is left stands in a list.
Mail that waits is deleted only when that is confirmed; pods end before the objects on the servers
are deleted, because a running pod would create them again. Source: ADR 0044."""

import asyncio
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from pydantic import ValidationError

from postroad import errors
from postroad.controller.cluster.claims import QueueClaims
from postroad.controller.cluster.clusters import Clusters
from postroad.controller.cluster.finalizers import Finalizers
from postroad.controller.cluster.plans import QueuePlace
from postroad.controller.cluster.queue_logins import QueueLogins
from postroad.controller.cluster.users import has_configuration
from postroad.controller.kubernetes.api import (
    CRON_JOB,
    INSTANCE,
    MAIL_QUEUE,
    NAMESPACE,
    POD,
    WORKLOADS,
    has_finalizer,
    log_action,
)
from postroad.controller.mailqueue.deletion_progress import (
    LATEST,
    SOON,
    DeletionProgress,
    how_to_confirm,
    how_to_force,
    is_confirmed,
    is_forced,
    named,
    why,
    without_progress_of_a_backup,
)
from postroad.controller.mailqueue.orphans import OrphanList, OrphanRecord
from postroad.controller.mailqueue.plan import QueuePlan, plan_of
from postroad.controller.mailqueue.queue_metrics import Engines
from postroad.controller.pods.applying import find_children
from postroad.controller.spec.queue_resource import Queue, is_erased_with_its_resource
from postroad.controller.status.conditions import (
    READY,
    RECONCILING,
    STALLED,
    Finding,
    Report,
    Truth,
    condition_of,
    ends_reconcile,
    invalid_fields,
)
from postroad.controller.status.status_writer import NORMAL, WARNING, Announcement, StatusWriter
from postroad.distributed.engine.ownership import check_erasable
from postroad.distributed.maintenance.erasure import MAX_REQUEST, Erasable, Erasure, Part
from postroad.domain.values.instants import format_duration
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object

STEP = timedelta(seconds=2)
"""Time that a step works, beside one request of each server."""

AT_ONCE, AT_ONCE_EACH = 8, 2
"""Deletions that take a step at the same time, in all and of one QueueCluster: those of a whole
namespace leave the other tasks to the queues that stay, and those that wait for a server that hangs
leave places to the deletions at other servers."""

PODS_END = timedelta(minutes=10)
"""After so long pods that still run are a matter for an administrator."""

ASKED_AGAIN = timedelta(seconds=15)
"""Interval of looks at mail that waits, while its deletion is not confirmed."""

DELETING = "Deleting"
BLOCKED = "DeletionBlocked"
CONFIRMATION_NEEDED = "ConfirmationNeeded"

LISTED = "OrphansListed"
"""The condition that is False while the list of what is left cannot be written."""

UNLISTED = timedelta(hours=2)
"""Time that an end waits for that list."""


class Deletion:
    """Carries out deletions."""

    def __init__(
        self,
        api: Kubernetes,
        clusters: Clusters,
        status_writer: StatusWriter,
        clock: Clock,
        engines: Engines,
        orphans: OrphanList,
    ) -> None:
        self._api = api
        self._clusters = clusters
        self._status_writer = status_writer
        self._finalizers = Finalizers(api, clusters)
        self._clock = clock
        self._engines = engines
        self._orphans = orphans
        self._stepping: Counter[Hashable] = Counter()
        self._ending: dict[str, timedelta] = {}
        self._unlisted: dict[str, timedelta] = {}
        """Since when deletions wait for pods, and for the list, by the uid of the MailQueue."""
        self._logins = QueueLogins(api, clusters, clock)

    async def proceed(self, found: Object) -> timedelta | None:
        """Carry on a deletion; return after how long to continue, None when it is over."""
        try:
            return await self._proceed(found)
        except errors.KubernetesError as error:
            if ends_reconcile(error):
                raise
            return await self._refused(found, error)

    async def _proceed(self, found: Object) -> timedelta | None:
        if not (has_finalizer(found) and is_erased_with_its_resource(found)):
            await self._finalizers.remove(MAIL_QUEUE, found)
            return None
        found = without_progress_of_a_backup(found)
        progress = DeletionProgress.of(found.get("status") or {}, self._clock.now())
        try:
            queue = Queue.of(found)
            cluster = await self._clusters.for_deletion(queue)
        except errors.InvalidQueueName:  # nothing was ever made under this name
            await self._finalizers.remove(MAIL_QUEUE, found)
            return None
        except ValidationError as error:
            return await self._stopped(found, progress, invalid_fields(error))
        except errors.ResourceConflict as error:  # another claimant has all of it
            return await self._end(found, "", progress.left_to_others(why(error)))
        except errors.PostroadError as error:
            if ends_reconcile(error):
                raise
            return await self._stopped(found, progress, why(error))
        plan = plan_of(queue, cluster, found.get("status") or {})
        return await self._begin(found, plan, progress)

    async def _begin(
        self, found: Object, plan: QueuePlan, progress: DeletionProgress
    ) -> timedelta | None:
        if "deletion" not in (found.get("status") or {}):
            if await self._waits_for_confirmation(found, plan.place):
                return ASKED_AGAIN
            if after := await self._waits_for_pods(found, plan.workloads.queue):
                return after
            # Pods accept mail until they end, which may be after the count.
            if await self._waits_for_confirmation(found, plan.place):
                return ASKED_AGAIN
            with suppress(errors.ServerError):  # reconciles of the QueueCluster try again
                await self._logins.delete(plan.broker)
        queue = plan.workloads.queue
        cluster = queue.cluster_namespace, queue.spec.cluster_ref.name
        if self._stepping[cluster] >= AT_ONCE_EACH or self._stepping.total() >= AT_ONCE:
            return timedelta(seconds=1)
        self._stepping[cluster] += 1
        try:
            return await self._step(found, plan.place, progress)
        finally:
            self._stepping[cluster] -= 1
            self._stepping += Counter()  # drops those without any

    async def _step(
        self, found: Object, place: QueuePlace, before: DeletionProgress
    ) -> timedelta | None:
        erasable = Erasable(
            name=place.name,
            broker=place.broker(),
            view=place.view(),
            history=place.history(),
            blobs=place.blobs(),
            claims=QueueClaims(self._clusters.claims, self._clusters.users, place),
        )
        steps = await Erasure(erasable, self._clock).proceed(before.done, STEP)
        progress = before.after(steps, self._clock.now())
        for part in (each for each, step in steps.items() if step.is_done):
            log_action("deleted", what=named(part, place.name, place.bucket))
        if progress.is_over or (progress.blocked and is_forced(found)):
            return await self._end(found, place.bucket, progress)
        reason = BLOCKED if progress.blocked else DELETING
        message = progress.message()
        if progress.blocked:
            message += f"; {self._how_to_force(found)}"
        await self._report(found, reason, message, progress)
        return progress.retry(self._clock.now())

    async def _waits_for_confirmation(self, found: Object, place: QueuePlace) -> bool:
        """Report mail that waits, whose deletion is not confirmed; until then the pods go on, so
        that it may be delivered. Mail whose number is not known counts as waiting."""
        if is_confirmed(found, None):
            return False
        begun = has_configuration(found)
        is_known_later, count = await self._waiting(place, begun=begun)
        if count is None:
            return False
        namespace = await self._api.get(NAMESPACE, None, place.name.namespace)
        if is_confirmed(found, namespace):
            return False
        ends = "deletionTimestamp" in (namespace or {}).get("metadata", {})
        message = f"{count}; {how_to_confirm(place.name, in_namespace=ends)}"
        reason = BLOCKED if is_known_later else CONFIRMATION_NEEDED
        is_new = await self._report(found, reason, message, is_stuck=not is_known_later)
        if ends and namespace is not None and is_new:
            # The API server refuses Events in a namespace that is being deleted.
            note = f"MailQueue {place.name.name}: {message}"
            await self._status_writer.announce(
                namespace, [Announcement(WARNING, reason, note, "Delete")]
            )
        return True

    async def _waiting(self, place: QueuePlace, *, begun: bool) -> tuple[bool, str | None]:
        """Return whether time alone may change the answer, and how many mails wait as text, None
        when none does. A queue that has `begun` has limits until it is erased, its messages
        first."""
        try:
            if (await place.view().limits()).browse_start is None:
                if not begun or not await place.broker().exists():
                    return False, None
                return False, "mails may wait: Cassandra has no limits of this queue any more"
            sizes = (await self._engines.count(place)).sizes
        except TimeoutError:
            return True, "mails may wait: Cassandra did not count them in time"
        except errors.QueueNotFound:
            return False, "mails may wait, and the configuration history is gone"
        except errors.PostroadError as error:
            return error.transient, f"mails may wait; they could not be counted: {why(error)}"
        if sizes.at_least:
            return False, f"{sizes.size} mails wait or more: too much would have to be read"
        if not sizes.size:
            return False, await self._unnamed(place)
        return False, "1 mail waits" if sizes.size == 1 else f"{sizes.size} mails wait"

    async def _unnamed(self, place: QueuePlace) -> str | None:
        """Return that mails may wait though no row names them: RabbitMQ and S3 still have what was
        queued after the backup from which Cassandra was restored. None: nothing shows that, or S3
        does not answer, which the erasure waits for."""
        try:
            async with asyncio.timeout(MAX_REQUEST):
                await check_erasable(place.name, place.view(), place.blobs())
        except errors.ViewOutdated as error:
            return f"mails may wait that no row names: {why(error)}"
        except (errors.BucketNotOwned, errors.ServerError, TimeoutError):
            pass
        return None

    async def _waits_for_pods(self, found: Object, queue: Queue) -> timedelta | None:
        """End the pods, and report those that still run, or that the operator may not end; return
        after how long to look again, None when there is nothing to wait for."""
        try:
            pods = await self._end_pods(queue)
        except errors.KubernetesError as error:
            if ends_reconcile(error):
                raise
            return None if is_forced(found) else await self._refused(found, error)
        uid, now = found["metadata"]["uid"], self._clock.elapsed()
        if not pods or is_forced(found):
            self._ending.pop(uid, None)
            return None
        message = f"waiting for {', '.join(pods[:5])} to end"
        if now - self._ending.setdefault(uid, now) < PODS_END:
            await self._report(found, DELETING, message)
            return SOON
        message += "; where the node of a pod is lost, delete the Node, or the pod with `--force`; "
        await self._report(found, BLOCKED, message + self._how_to_force(found), is_stuck=True)
        return LATEST

    async def _end_pods(self, queue: Queue) -> list[str]:
        """Delete what makes pods; return the pods that still run."""
        makers = {each.name: each for each in (*WORKLOADS, CRON_JOB)}
        for (kind, name), child in (await find_children(self._api, queue)).items():
            if kind in makers:
                await self._api.delete(makers[kind], child)
                log_action("deleted a child", child=f"{kind} {name}")
        labels = f"app.kubernetes.io/name=postroad,{INSTANCE}={queue.name.name}"
        pods = await self._api.list(POD, queue.name.namespace, labels)
        over = ("Succeeded", "Failed")
        return [
            f"pod {each['metadata']['name']}"
            for each in pods
            if (each.get("status") or {}).get("phase") not in over
        ]

    async def _stopped(
        self, found: Object, progress: DeletionProgress, message: str
    ) -> timedelta | None:
        """Report that the servers cannot be reached, or end with everything left."""
        progress = replace(
            progress, blocked=tuple((each, message) for each in Part if each not in progress.done)
        )
        if is_forced(found):
            return await self._end(found, "", progress)
        message += f"; {self._how_to_force(found)}"
        await self._report(found, BLOCKED, message)
        return LATEST

    async def _refused(self, found: Object, error: errors.KubernetesError) -> timedelta:
        """Report what the API server did not do."""
        message = f"{why(error)}; {self._how_to_force(found)}"
        await self._report(found, BLOCKED, message, is_stuck=not error.transient)
        return LATEST

    def _how_to_force(self, found: Object) -> str:
        metadata = found["metadata"]
        return how_to_force(metadata["namespace"], metadata["name"], self._orphans.place)

    async def _end(
        self, found: Object, bucket: str, progress: DeletionProgress
    ) -> timedelta | None:
        """List what is left, post the Event, then remove the finalizer. In this order: a crash
        between two of them repeats the first, and loses nothing."""
        orphan = OrphanRecord.of(found, progress, bucket, self._clock.now())
        listed = f"listed in {self._orphans.place}"
        if orphan.left:
            try:
                await self._orphans.add(orphan)
            except errors.KubernetesError as error:
                if ends_reconcile(error):
                    raise
                if not await self._stays_unlisted(found, orphan, why(error)):
                    return LATEST
                listed = f"not {listed} ({why(error)})"
            log_action("left behind", queue=orphan.queue, **orphan.left)
        await self._status_writer.announce(found, [_outcome(orphan, listed)])
        await self._finalizers.remove(MAIL_QUEUE, found)
        self._unlisted.pop(found["metadata"]["uid"], None)
        return None

    async def _stays_unlisted(self, found: Object, orphan: OrphanRecord, error: str) -> bool:
        """Report that what is left cannot be listed; return whether that lasts for so long that the
        deletion ends without the list."""
        message = (
            f"the list of what is left cannot be written: {error}; the deletion ends without it "
            f"after {format_duration(UNLISTED)}; left behind: {_parts(orphan)}"
        )
        listed = Finding(LISTED, Truth.FALSE, "ListRefused", message)
        uid, now = found["metadata"]["uid"], self._clock.elapsed()
        waits = now - self._unlisted.setdefault(uid, now)
        try:
            await self._report(found, BLOCKED, message, also=[listed])
        except (
            errors.KubernetesError
        ) as refused:  # a status that is refused too must not hold it for ever
            if ends_reconcile(refused):
                raise
        if waits >= UNLISTED:
            return True
        since = condition_of(found.get("status") or {}, LISTED).get("lastTransitionTime")
        return since is not None and (datetime.fromisoformat(since) + UNLISTED <= self._clock.now())

    async def _report(
        self,
        found: Object,
        reason: str,
        message: str,
        progress: DeletionProgress | None = None,
        *,
        is_stuck: bool = False,
        also: Sequence[Finding] = (),
    ) -> bool:
        """Write the status; return whether the reason has changed."""
        stalls = is_stuck or (progress is not None and progress.is_stuck)
        ready = Finding(READY, Truth.FALSE, reason, message)
        trying = Finding(STALLED if stalls else RECONCILING, Truth.TRUE, reason, message)
        fields = {} if progress is None else {"deletion": progress.as_field()}
        report = Report([ready, trying, *also], fields, replaced=frozenset({RECONCILING, STALLED}))
        await self._status_writer.report(MAIL_QUEUE, found, report)
        return bool(condition_of(found.get("status") or {}, READY).get("reason") != reason)


def retained(found: Object) -> list[Announcement]:
    """Return the Event about a MailQueue that was deleted without an erasure, unless nothing was
    made for it."""
    if is_erased_with_its_resource(found) or "configuration" not in (found.get("status") or {}):
        return []
    metadata = found["metadata"]
    note = f"the queue {metadata['namespace']}.{metadata['name']}, its rows and bytes are kept"
    return [Announcement(NORMAL, "Retained", note, "Delete", once=True)]


def _outcome(orphan: OrphanRecord, listed: str) -> Announcement:
    if orphan.left:
        note = f"left behind of {orphan.queue}, and {listed}: {_parts(orphan)}"
        return Announcement(WARNING, "LeftBehind", note, "Delete", once=True)
    note = f"the queue {orphan.queue}, its rows, bytes and history are deleted"
    return Announcement(NORMAL, "Deleted", note, "Delete", once=True)


def _parts(orphan: OrphanRecord) -> str:
    return "; ".join(f"{part} ({text})" for part, text in orphan.left.items())
