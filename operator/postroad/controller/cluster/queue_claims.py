"""The claims of a MailQueue: on its queues in RabbitMQ, and on its own bucket."""

import json

from postroad.controller.cluster.claims import Claims
from postroad.controller.cluster.plans import QueuePlace
from postroad.controller.cluster.users import ClusterUsers
from postroad.distributed.maintenance.erasure import Part
from postroad.domain.queues.names import BUCKET_CLAIM
from postroad.domain.queues.server_claims import Claim, Claimant
from postroad.errors import BlobMissing
from postroad.ports.blobs import Blobs
from postroad.ports.servers import ClaimRecord


class QueueClaims:
    """`ErasureClaims` by the claims at the servers: what another one has claimed stays. Raises:
    ResourceConflict, ServerError, KubernetesError."""

    def __init__(self, claims: Claims, users: ClusterUsers, place: QueuePlace) -> None:
        self._claims = claims
        self._users = users
        self._place = place

    async def claim(self, part: Part) -> None:
        """Claim a part that exists. A bucket that others share has no claim: of that the queue uses
        the keys that begin with its own name."""
        place = self._place
        if part is Part.MESSAGES:
            what = f"exchange {place.name.exchange} with its queues in RabbitMQ"
            await self._claims.hold(self._queue_claim(), place.holder, what)
        elif part is Part.BYTES and place.owns_bucket:
            await self._claims.hold(self._bucket_claim(), place.holder, f"bucket {place.bucket}")

    async def release(self, part: Part) -> None:
        place = self._place
        if part is Part.MESSAGES:
            await self._claims.let_go(self._queue_claim(), place.holder)
        elif part is Part.BYTES and place.owns_bucket:
            await self._claims.let_go(self._bucket_claim(), place.holder)
            async for _ in place.blobs().empty(BUCKET_CLAIM):
                pass  # versions of the claim, in a bucket that keeps them

    async def owns_bucket(self) -> bool:
        """True if no other MailQueue that stays has a bucket of this name: `a-b.c` and `a.b-c` have
        one."""
        return self._place.owns_bucket and not await self._users.others_with_bucket(self._place)

    def _queue_claim(self) -> ClaimRecord:
        return self._place.servers.queue_claim(self._place.name)

    def _bucket_claim(self) -> ClaimRecord:
        return BucketClaim(self._place.blobs())


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
