"""Claims what MailQueues and QueueClusters use at the servers, so that one QueueCluster changes it:
keyspaces, queues in RabbitMQ, buckets.

The record stands at each server. A claimant takes no object of another one, unless the other one
is gone, or lost the keyspace to this one, or an administrator lets this one adopt the object.
Source: ADR 0040."""

import asyncio
import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import Enum, auto

from postroad import errors
from postroad.controller.cluster.plans import Holder, KeyspacePlan, QueuePlace
from postroad.controller.cluster.users import ClusterUsers
from postroad.controller.kubernetes.api import (
    ADOPT,
    MAIL_QUEUE,
    NAMESPACE,
    QUEUE_CLUSTER,
    Key,
    log_action,
)
from postroad.controller.reads import PATIENCE, Absences
from postroad.controller.spec.queue_resource import cluster_of
from postroad.distributed.maintenance.erasure import Part
from postroad.domain.queues.names import BUCKET_CLAIM
from postroad.domain.queues.ownership import Claim, Claimant
from postroad.domain.values.instants import format_duration
from postroad.errors import BlobMissing
from postroad.ports.blobs import Blobs
from postroad.ports.kubernetes import Kubernetes
from postroad.ports.servers import ClaimRecord

SYSTEM = "kube-system"
"""The namespace that every Kubernetes cluster has once; its uid stands for the cluster."""

RELEASE_SECONDS = 5.0


class Ruling(Enum):
    """Action about a claim that is there."""

    KEEP = auto()
    TAKE = auto()
    LEAVE = auto()


def judge(
    found: Claim,
    wanted: Claimant,
    *,
    adopted: str = "",
    former: Collection[str] = (),
    is_gone: bool = False,
) -> Ruling:
    """Return what a claimant does about a claim. `adopted`: the id of the claim that an
    administrator lets it take. `former`: tokens of those who had its keyspace before: the queues of
    a keyspace go with it. `is_gone`: the claimant of `found` does not exist any more; what it kept
    of a queue of the same name is mail whose rows are in its keyspace, and stays its own."""
    if found.is_of(wanted):
        return Ruling.KEEP
    is_same_queue = found.claimant is None or found.claimant.queue == wanted.queue
    is_mail = is_same_queue and wanted.queue != ""
    is_inherited = is_mail and found.token in former
    is_left = is_gone and not is_mail
    is_adopted = adopted != "" and found.id == adopted
    return Ruling.TAKE if is_inherited or is_left or is_adopted else Ruling.LEAVE


class Claims:
    """Makes claims for the QueueClusters and MailQueues of one Kubernetes cluster, and keeps in
    memory which QueueClusters have their keyspaces: all else that is claimed goes with that."""

    def __init__(self, api: Kubernetes, users: ClusterUsers, absences: Absences) -> None:
        self._api = api
        self._users = users
        self._absences = absences
        self._kubernetes = ""
        self._keyspaces: dict[str, Claim] = {}
        self._conflicts: dict[str, errors.ResourceConflict] = {}
        self._waiting: dict[tuple[Key, str], Claimant] = {}
        """The claimants of objects that resources wait for."""

    async def claim_keyspace(self, plan: KeyspacePlan) -> Claim | None:
        """Claim the keyspace of a QueueCluster; None while there is no keyspace. Raises:
        ResourceConflict, ViewError, KubernetesError."""
        record, uid = plan.servers.keyspace_claim(), plan.holder.uid
        try:
            found = await self.hold(record, plan.holder, f"keyspace {plan.cassandra.keyspace}")
        except errors.ResourceConflict as error:
            self._keyspaces.pop(uid, None)
            self._conflicts[uid] = error
            raise
        self._conflicts.pop(uid, None)
        if found is not None:
            self._keyspaces[uid] = found
        return found

    async def check_keyspace(self, plan: KeyspacePlan) -> None:
        """Raise what `claim_keyspace` raised in the last reconcile of the QueueCluster, or raises
        now if it was not asked yet. A claim of an earlier process is believed while Cassandra is
        away."""
        uid = plan.holder.uid
        if (known := self._conflicts.get(uid)) is not None:
            raise errors.ResourceConflict(str(known), hint=known.hint)
        if uid in self._keyspaces or (plan.away and plan.has_tables):
            return
        try:
            await self.claim_keyspace(plan)
        except errors.ServerError as error:
            if not (error.transient and plan.has_tables):
                raise

    def is_held(self, uid: str) -> bool:
        """True if a QueueCluster had the claim on its keyspace when this process last asked."""
        return uid in self._keyspaces

    def conflict_of(self, uid: str) -> str | None:
        """Return why a QueueCluster did not get its keyspace when this process last asked."""
        return str(self._conflicts[uid]) if uid in self._conflicts else None

    def forget(self, uid: str) -> None:
        """Forget a QueueCluster that is gone. Idempotent."""
        self._keyspaces.pop(uid, None)
        self._conflicts.pop(uid, None)

    async def token(self, holder: Holder) -> str:
        """Return the token of a QueueCluster and its MailQueues. Raises: KubernetesError."""
        return (await self._claimant(holder)).token

    async def _claimant(self, holder: Holder) -> Claimant:
        if not self._kubernetes:
            found = await self._api.get(NAMESPACE, None, SYSTEM)
            if found is None:
                raise errors.KubernetesRefused(f"there is no namespace {SYSTEM}")
            self._kubernetes = found["metadata"]["uid"]
        return Claimant(self._kubernetes, holder.namespace, holder.name, holder.queue)

    async def hold(self, record: ClaimRecord, holder: Holder, what: str) -> Claim | None:
        """Claim an object, or take it over where the ruling is so; return the claim; None for an
        object that does not exist yet. `what`: its name for messages. Raises: ResourceConflict,
        ServerError, KubernetesError."""
        wanted, keyspace = await self._claimant(holder), self._keyspaces.get(holder.uid)
        found = await record.claim(wanted)
        if found is None:
            return None
        former = keyspace.former if keyspace else ()
        ruling = judge(found, wanted, adopted=holder.adopted, former=former)
        if ruling is Ruling.LEAVE and await self._is_gone(found):
            ruling = judge(found, wanted, is_gone=True)
        if ruling is Ruling.TAKE:
            before, found = found, await record.transfer(found, wanted)
            log_action("took over a claim", what=what, of=str(before), by=str(found))
        waiting = resource_of(wanted), what
        if not found.is_of(wanted):
            if found.claimant is not None:
                self._waiting[waiting] = found.claimant
            raise conflict(found, what, is_missing=self._absences.has(found.claimant))
        self._waiting.pop(waiting, None)
        return found

    def waiting_for(self, gone: Key) -> Sequence[Key]:
        """Return the resources that wait for an object of one that is gone."""
        return [
            key
            for (key, _), owner in self._waiting.items()
            if owner.kubernetes == self._kubernetes
            and gone in (resource_of(owner), resource_of(replace(owner, queue="")))
        ]

    def forget_waiting(self, gone: Key) -> None:
        """Forget what a resource that is gone waits for. Idempotent."""
        for each in [each for each in self._waiting if each[0] == gone]:
            del self._waiting[each]

    async def let_go(self, record: ClaimRecord, holder: Holder) -> None:
        """Release a claim. Idempotent. Raises: ServerError, KubernetesError."""
        await record.release(await self._claimant(holder))

    async def release_keyspace(self, record: ClaimRecord, holder: Holder) -> None:
        """Release the keyspace of a QueueCluster that is gone, for one of another Kubernetes
        cluster: one of the same finds that it is gone. Best effort."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self.let_go(record, holder)
            log_action("released the claim on the keyspace")
        except (errors.PostroadError, TimeoutError) as error:
            log_action("the claim on the keyspace stays", error=str(error))

    async def _is_gone(self, found: Claim) -> bool:
        """True if the claimant was a resource of this Kubernetes cluster, and is gone for good."""
        owner = found.claimant
        if owner is None or owner.kubernetes != self._kubernetes:
            return False
        try:
            is_there = await self._is_there(owner)
        except errors.KubernetesRefused:  # an operator of some namespaces may not read others
            return False
        if is_there:
            self._absences.end(owner)
        return not is_there and self._absences.lasts(owner)

    async def _is_there(self, owner: Claimant) -> bool:
        """True if a claimant exists. A QueueCluster does as long as MailQueues refer to its name,
        because their mail is in its keyspace."""
        if owner.queue:
            key = resource_of(owner)
            queue = await self._api.get(MAIL_QUEUE, key.namespace, key.name)
            return queue is not None and cluster_of(queue) == resource_of(replace(owner, queue=""))
        place = owner.namespace, owner.name
        if await self._api.get(QUEUE_CLUSTER, *place) is not None:
            return True
        return bool(await self._users.referring(*place, certain=True))


def resource_of(claimant: Claimant) -> Key:
    """Return the key of a claimant: of the MailQueue, or of the QueueCluster itself."""
    if not claimant.queue:
        return Key(QUEUE_CLUSTER.name, claimant.namespace, claimant.name)
    namespace, _, name = claimant.queue.partition(".")
    return Key(MAIL_QUEUE.name, namespace, name)


def conflict(found: Claim, what: str, *, is_missing: bool) -> errors.ResourceConflict:
    """Return the error about another claimant's object. `is_missing`: it does not exist now."""
    patience = format_duration(PATIENCE)
    hint = "give this one another"
    if is_missing:
        hint += f", wait until the other, which does not exist, has been gone for {patience}"
    elif found.id:
        hint += ", delete the other"
    if found.id:
        hint += f", or take it over by the annotation {ADOPT}={found.id}"
    return errors.ResourceConflict(f"{what} is claimed by {found}", hint=hint)


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
        """True if no other MailQueue that stays has this bucket: `a-b.c` and `a.b-c` share one."""
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
