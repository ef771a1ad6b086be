"""What the claims of a MailQueue let its erasure do."""

from __future__ import annotations

from postroad.controller.cluster.clusters import Cluster, Clusters
from postroad.controller.cluster.queue_claims import QueueClaims
from postroad.controller.spec.queue_resource import Queue
from postroad.distributed.maintenance.erasure import Part
from postroad.domain.queues.names import BUCKET_CLAIM


class ClaimedParts:
    """`ErasureClaims` by the claims at the servers: what another one has claimed stays."""

    def __init__(
        self, clusters: Clusters, claims: QueueClaims, cluster: Cluster, queue: Queue
    ) -> None:
        self._clusters = clusters
        self._claims = claims
        self._cluster = cluster
        self._queue = queue

    async def claim(self, part: Part) -> None:
        if part is Part.MESSAGES:
            await self._claims.claim_queue(self._cluster, self._queue)
        elif part is Part.BYTES:
            await self._claims.claim_bucket(self._cluster, self._queue)

    async def release(self, part: Part) -> None:
        if part is Part.MESSAGES:
            await self._claims.release_queue(self._cluster, self._queue)
        elif part is Part.BYTES and self._queue.owns_bucket:
            await self._claims.release_bucket(self._cluster, self._queue)
            bucket = self._cluster.servers.blobs(self._queue.bucket(self._cluster.spec))
            async for _ in bucket.empty(BUCKET_CLAIM):
                pass  # versions of the claim, in a bucket that keeps them

    async def owns_bucket(self) -> bool:
        """Whether no other MailQueue that stays has a bucket of this name: `a-b.c` and `a.b-c` have
        one."""
        if not self._queue.owns_bucket:
            return False
        return not await self._clusters.users.others_with_bucket(self._queue, self._cluster.spec)
