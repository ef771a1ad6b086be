"""The claims of a MailQueue: on its queues in RabbitMQ, and on its own bucket."""

from __future__ import annotations

import json

from postroad.controller.cluster.claims import Claims
from postroad.controller.cluster.clusters import Cluster
from postroad.controller.spec.queue_resource import Queue
from postroad.domain.queues.names import BUCKET_CLAIM
from postroad.domain.servers.claims import Claim, Claimant
from postroad.errors import BlobMissing
from postroad.ports.blobs import Blobs
from postroad.ports.claims import ClaimRecord


class QueueClaims:
    """Makes and releases the claims of MailQueues. Raises: ResourceConflict, ServerError,
    KubernetesError."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    async def claim_queue(self, cluster: Cluster, queue: Queue) -> None:
        """Claim the queues of a MailQueue in RabbitMQ."""
        what = f"exchange {queue.name.exchange} with its queues in RabbitMQ"
        await self._hold(cluster.servers.queue_claim(queue.name), cluster, queue, what)

    async def claim_bucket(self, cluster: Cluster, queue: Queue) -> None:
        """Claim the bucket of a MailQueue that exists. One that it shares has no claim: of that it
        uses the keys that begin with its own name."""
        if queue.owns_bucket:
            bucket = queue.bucket(cluster.spec)
            record = BucketClaim(cluster.servers.blobs(bucket))
            await self._hold(record, cluster, queue, f"bucket {bucket}")

    async def release_queue(self, cluster: Cluster, queue: Queue) -> None:
        """Release the claim on the queues in RabbitMQ. Idempotent."""
        wanted = await self._claimant(cluster, queue)
        await cluster.servers.queue_claim(queue.name).release(wanted)

    async def release_bucket(self, cluster: Cluster, queue: Queue) -> None:
        """Release the claim on the bucket, without which a bucket is empty. Idempotent."""
        bucket = cluster.servers.blobs(queue.bucket(cluster.spec))
        await BucketClaim(bucket).release(await self._claimant(cluster, queue))

    async def _hold(self, record: ClaimRecord, cluster: Cluster, queue: Queue, what: str) -> None:
        wanted, former = await self._claimant(cluster, queue), self._claims.former(cluster.uid)
        await self._claims.claim(record, wanted, what, queue.adopted, former)

    async def _claimant(self, cluster: Cluster, queue: Queue) -> Claimant:
        return await self._claims.claimant(cluster.namespace, cluster.name, str(queue.name))


class BucketClaim:
    """`ClaimRecord` of a bucket, as an object in it. A store without conditional requests may let
    the last of several claimants at once win; the others find that at their next reconcile."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def claim(self, claimant: Claimant) -> Claim | None:
        found = await self._found()
        if found is None:
            await self._blobs.put_new(BUCKET_CLAIM, _encoded(claimant))
            found = await self._found()
        return found

    async def transfer(self, found: Claim, claimant: Claimant) -> Claim:
        if await self._found() == found:
            await self._blobs.put(BUCKET_CLAIM, _encoded(claimant))
        return await self._found() or Claim.of(claimant)

    async def release(self, claimant: Claimant) -> None:
        found = await self._found()
        if found is not None and found.is_of(claimant):
            await self._blobs.delete(BUCKET_CLAIM)

    async def _found(self) -> Claim | None:
        try:
            return Claim.of(Claimant.decode(json.loads(await self._blobs.get(BUCKET_CLAIM))))
        except BlobMissing:
            return None
        except ValueError:
            return Claim("", None)


def _encoded(claimant: Claimant) -> bytes:
    return json.dumps(claimant.encode()).encode()
