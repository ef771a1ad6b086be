"""Ends a MailQueue as its deletion policy says, within a bound.

Programs stop before their servers' objects go, so that none of them makes anything anew. A server
that stays away until the deadline keeps its part; an Event says what that is. Nothing here holds a
namespace for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import ValidationError

from postroad.controller.api import DEPLOYMENT, INSTANCE, MAIL_QUEUE, POD
from postroad.controller.api_server import ApiServer, Object
from postroad.controller.apply_children import find_children
from postroad.controller.clusters import Cluster, Clusters
from postroad.controller.conditions import READY, RECONCILING, STALLED, Finding, Truth, conditions
from postroad.controller.events import NORMAL, WARNING, Announcement
from postroad.controller.reporting import Reporter
from postroad.controller.resource import Queue
from postroad.distributed.ownership import check_erasable
from postroad.errors import InvalidQueueName, PostroadError
from postroad.ports.clock import Clock

DELETION_TIMEOUT = timedelta(minutes=2)
"""After this time a deletion ends, whatever a server says."""

SERVER_SECONDS = 20.0
RETRY = timedelta(seconds=3)
DELETING = "Deleting"


@dataclass(frozen=True, slots=True)
class Left:
    """What a deletion could not remove, and why."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} ({self.why})"


class Deletion:
    """Carries deletions out. `timeout` is counted from the deletion timestamp."""

    def __init__(
        self,
        api: ApiServer,
        clusters: Clusters,
        reporter: Reporter,
        clock: Clock,
        timeout: timedelta = DELETION_TIMEOUT,
    ) -> None:
        self._api = api
        self._clusters = clusters
        self._reporter = reporter
        self._clock = clock
        self._timeout = timeout

    async def proceed(self, found: Object) -> timedelta | None:
        """Go on with a deletion; returns after how long to come again, None when it is over."""
        try:
            queue = Queue.of(found)
        except (ValidationError, InvalidQueueName):
            await self._reporter.let_go(MAIL_QUEUE, found)
            return None
        if queue.spec.deletion_policy == "Retain" or queue.spec.paused:
            note = f"the queue {queue.name}, its rows and its bytes are kept"
            await self._end(found, Announcement(NORMAL, "Retained", note, "Delete", once=True))
            return None
        late = self._is_late(found)
        if await self._pods_run(queue) and not late:
            await self._say(found, "waiting for workers and intake to end")
            return RETRY
        left = await self._remove(queue, late=late)
        if left and not late:
            await self._say(found, "; ".join(map(str, left)))
            return RETRY
        await self._end(found, _last_words(queue, left))
        return None

    async def _end(self, found: Object, announcement: Announcement) -> None:
        """The Event comes first: what was left behind is said nowhere else, so a crash between the
        two may repeat it, but must not lose it."""
        await self._reporter.announce(found, [announcement])
        await self._reporter.let_go(MAIL_QUEUE, found)

    def _is_late(self, found: Object) -> bool:
        began = datetime.fromisoformat(found["metadata"]["deletionTimestamp"])
        return self._clock.now() - began >= self._timeout

    async def _pods_run(self, queue: Queue) -> bool:
        """Stop the programs; return whether some still run."""
        for (kind, _), child in (await find_children(self._api, queue)).items():
            if kind == DEPLOYMENT.name:
                await self._api.delete(DEPLOYMENT, child)
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
        # Rows go last: without its limits a view cannot show that the bytes are its own.
        if blobs is None or late:
            view = await self._try(parts["view"], lambda: self._remove_rows(cluster, queue))
            left += [view] if view is not None else []
        return left

    async def _try(self, what: str, work: Callable[[], Awaitable[object]]) -> Left | None:
        try:
            async with asyncio.timeout(SERVER_SECONDS):
                await work()
        except TimeoutError:
            return Left(what, "no answer in time")
        except PostroadError as error:
            return Left(what, str(error))
        return None

    async def _remove_messages(self, cluster: Cluster, queue: Queue) -> None:
        limit = queue.spec.broker.delivery_limit
        await cluster.servers.broker(queue.name, delivery_limit=limit).delete()

    async def _remove_rows(self, cluster: Cluster, queue: Queue) -> None:
        await cluster.servers.views().view(str(queue.name)).erase()
        await cluster.servers.history(queue.name).erase()

    async def _remove_bytes(self, cluster: Cluster, queue: Queue, bucket: str) -> None:
        """Delete the queue's objects; its own bucket too, unless others have put something into it:
        names of S3 are shared by all clusters, and two queues may come to the same one. So may
        the same queue of two installations: the bytes of the other one stay."""
        blobs = cluster.servers.blobs(bucket)
        if await blobs.exists():
            await check_erasable(queue.name, cluster.servers.views().view(str(queue.name)), blobs)
            await blobs.drop(f"{queue.name}/", bucket=queue.owns_bucket)

    async def _say(self, found: Object, message: str) -> None:
        before = found.get("status") or {}
        said = [
            Finding(each, truth, DELETING, message)
            for each, truth in ((READY, Truth.FALSE), (RECONCILING, Truth.TRUE))
        ]
        known = before.get("conditions") or []
        generation = found["metadata"]["generation"]
        kept = [each for each in known if each["type"] not in (READY, RECONCILING, STALLED)]
        after = {
            **before,
            "observedGeneration": generation,
            "conditions": [*conditions(known, said, generation, self._clock.now()), *kept],
        }
        await self._reporter.write(MAIL_QUEUE, found, after)


def _last_words(queue: Queue, left: list[Left]) -> Announcement:
    if left:
        note = "left behind: " + "; ".join(map(str, left))
        return Announcement(WARNING, "LeftBehind", note, "Delete", once=True)
    note = f"the queue {queue.name}, its rows, bytes and history are gone"
    return Announcement(NORMAL, "Deleted", note, "Delete", once=True)
