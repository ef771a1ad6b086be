"""Carries out a MailQueue's deletion policy within a bounded time.

Pods end before the objects on the servers are deleted, because a running pod would create them
again. A server that is away until the deadline keeps its objects, and an Event names them, so that
a deletion never blocks a namespace for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import ValidationError

from postroad.controller.actions import log_action
from postroad.controller.api import DEPLOYMENT, INSTANCE, MAIL_QUEUE, POD
from postroad.controller.clusters import Cluster, Clusters
from postroad.controller.conditions import READY, RECONCILING, STALLED, Finding, Truth, conditions
from postroad.controller.finalizers import Finalizers, has_finalizer
from postroad.controller.queue_children import find_children
from postroad.controller.queue_claims import QueueClaims
from postroad.controller.queue_resource import Queue, is_erased_with_its_resource
from postroad.controller.reporting import NORMAL, WARNING, Announcement, Reporter
from postroad.distributed.ownership import check_erasable
from postroad.errors import InvalidQueueName, PostroadError
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object

DELETION_TIMEOUT = timedelta(minutes=2)
"""Bound of a deletion, after which it ends although a server is away."""

SERVER_SECONDS = 20.0
RETRY = timedelta(seconds=3)
DELETING = "Deleting"


@dataclass(frozen=True, slots=True)
class Left:
    """An object that a deletion could not remove, and why."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} ({self.why})"


class Deletion:
    """Carries out deletions. `timeout` counts from the deletion timestamp."""

    def __init__(
        self,
        api: Kubernetes,
        clusters: Clusters,
        reporter: Reporter,
        clock: Clock,
        timeout: timedelta = DELETION_TIMEOUT,
    ) -> None:
        self._api = api
        self._clusters = clusters
        self._reporter = reporter
        self._finalizers = Finalizers(api, clusters)
        self._clock = clock
        self._timeout = timeout
        self._claims = QueueClaims(clusters.claims)

    async def proceed(self, found: Object) -> timedelta | None:
        """Carry on a deletion; return after how long to continue, None when it is over."""
        try:
            queue = Queue.of(found)
        except (ValidationError, InvalidQueueName):
            await self._finalizers.remove(MAIL_QUEUE, found)
            return None
        if not (has_finalizer(found) and queue.is_erased_with_its_resource):
            await self._finalizers.remove(MAIL_QUEUE, found)
            return None
        late = self._is_late(found)
        if await self._pods_run(queue) and not late:
            await self._report(found, "waiting for workers and intake to end")
            return RETRY
        left = await self._remove(queue, late=late)
        if left and not late:
            await self._report(found, "; ".join(map(str, left)))
            return RETRY
        await self._end(found, _outcome(queue, left))
        return None

    async def _end(self, found: Object, announcement: Announcement) -> None:
        """Post the Event, then remove the finalizer. In this order, because only the Event names
        what was left behind: a crash between the two repeats it, and does not lose it."""
        await self._reporter.announce(found, [announcement])
        await self._finalizers.remove(MAIL_QUEUE, found)

    def _is_late(self, found: Object) -> bool:
        began = datetime.fromisoformat(found["metadata"]["deletionTimestamp"])
        return self._clock.now() - began >= self._timeout

    async def _pods_run(self, queue: Queue) -> bool:
        """Delete the Deployments; return whether pods still run."""
        for (kind, _), child in (await find_children(self._api, queue)).items():
            if kind == DEPLOYMENT.name:
                await self._api.delete(DEPLOYMENT, child)
                log_action("deleted a child", child=f"Deployment {child['metadata']['name']}")
        labels = f"app.kubernetes.io/name=postroad,{INSTANCE}={queue.name.name}"
        pods = await self._api.list(POD, queue.name.namespace, labels)
        over = ("Succeeded", "Failed")
        return any((each.get("status") or {}).get("phase") not in over for each in pods)

    async def _remove(self, queue: Queue, *, late: bool) -> list[Left]:
        name = queue.name
        parts = {
            "broker": f"RabbitMQ exchange {name.exchange} and its queues",
            "view": f"rows of {name} in Cassandra",
            "blobs": "objects in S3",
        }
        try:
            cluster = await self._clusters.for_deletion(queue)
        except (PostroadError, ValidationError) as error:
            return [Left(each, str(error)) for each in parts.values()]
        bucket = queue.bucket(cluster.spec)
        parts["blobs"] = (
            f"bucket {bucket}" if queue.owns_bucket else f"objects {name}/ in bucket {bucket}"
        )
        broker, blobs = await asyncio.gather(
            self._try(parts["broker"], lambda: self._remove_messages(cluster, queue)),
            self._try(parts["blobs"], lambda: self._remove_bytes(cluster, queue, bucket)),
        )
        left = [each for each in (broker, blobs) if each is not None]
        # Rows go last: without its limits a view cannot prove that it owns the bytes.
        if blobs is None or late:
            view = await self._try(parts["view"], lambda: self._remove_rows(cluster, queue))
            left += [view] if view is not None else []
        return left

    async def _try(self, what: str, work: Callable[[], Awaitable[object]]) -> Left | None:
        try:
            async with asyncio.timeout(SERVER_SECONDS):
                await work()
            log_action("deleted", what=what)
        except TimeoutError:
            return Left(what, "no answer in time")
        except PostroadError as error:
            return Left(what, str(error))
        return None

    async def _remove_messages(self, cluster: Cluster, queue: Queue) -> None:
        limit = queue.spec.broker.delivery_limit
        await self._claims.hold_queue(cluster, queue)
        await cluster.servers.broker(queue.name, delivery_limit=limit).delete()
        await self._claims.release_queue(cluster, queue)

    async def _remove_rows(self, cluster: Cluster, queue: Queue) -> None:
        await cluster.servers.views().view(str(queue.name)).erase()
        await cluster.servers.history(queue.name).erase()

    async def _remove_bytes(self, cluster: Cluster, queue: Queue, bucket: str) -> None:
        """Delete the queue's objects, and its own bucket unless that holds other objects, or is
        another queue's too (`a-b.c` and `a.b-c`). Two queues of one name in two installations share
        a bucket, because bucket names are global: the bytes of the other one stay."""
        blobs = cluster.servers.blobs(bucket)
        if await blobs.exists():
            await check_erasable(queue.name, cluster.servers.views().view(str(queue.name)), blobs)
            others = await self._clusters.users.others_with_bucket(queue, cluster.spec)
            await self._claims.hold_bucket(cluster, queue)
            if queue.owns_bucket:
                await self._claims.release_bucket(cluster, queue)
            await blobs.drop(f"{queue.name}/", bucket=queue.owns_bucket and not others)

    async def _report(self, found: Object, message: str) -> None:
        before = found.get("status") or {}
        findings = [
            Finding(each, truth, DELETING, message)
            for each, truth in ((READY, Truth.FALSE), (RECONCILING, Truth.TRUE))
        ]
        known = before.get("conditions") or []
        generation = found["metadata"]["generation"]
        kept = [each for each in known if each["type"] not in (READY, RECONCILING, STALLED)]
        after = {
            **before,
            "observedGeneration": generation,
            "conditions": [*conditions(known, findings, generation, self._clock.now()), *kept],
        }
        await self._reporter.write(MAIL_QUEUE, found, after)


def retained(found: Object) -> list[Announcement]:
    """Return the Event about a MailQueue that was deleted without an erasure, unless nothing was
    made for it."""
    if is_erased_with_its_resource(found) or "configuration" not in (found.get("status") or {}):
        return []
    metadata = found["metadata"]
    note = f"the queue {metadata['namespace']}.{metadata['name']}, its rows and bytes are kept"
    return [Announcement(NORMAL, "Retained", note, "Delete", once=True)]


def _outcome(queue: Queue, left: list[Left]) -> Announcement:
    if left:
        note = "left behind: " + "; ".join(map(str, left))
        return Announcement(WARNING, "LeftBehind", note, "Delete", once=True)
    note = f"the queue {queue.name}, its rows, bytes and history are deleted"
    return Announcement(NORMAL, "Deleted", note, "Delete", once=True)
