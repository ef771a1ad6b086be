"""Checks that the bucket's objects are this view's, before an audit takes any as orphans.

An audit deletes objects that no row names. That is wrong where the rows are in another view, or
were: another installation uses the bucket for a queue of the same name, or the view was restored
from a backup. The owner object shows both (`domain.queues.ownership`). Source: ADR 0024."""

from datetime import timedelta
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.domain.queues.names import QueueName, key_of_owner
from postroad.domain.queues.ownership import Identity, Owner, following, is_older
from postroad.errors import BlobMissing, BucketNotOwned, QueueNotFound, ViewOutdated
from postroad.ports.blobs import Blobs
from postroad.ports.view import View
from postroad.telemetry import metrics

AS_OF_INTERVAL = timedelta(minutes=10)
"""Interval at which `as_of` is raised: the objects' `as_of` is newer than that of a backup made
before the last raise."""

_ADOPT = "`postroad audit --adopt` records this view as the owner"


async def check(engine: Engine) -> None:
    """Check that the owner object names this view, in no later state; create the object where there
    is none. Raises: BucketNotOwned, BlobsError, CredentialsRefused, ViewError."""
    await _owner(engine)


async def renew(engine: Engine) -> None:
    """As `check`, and raise `as_of` if none did for a while. Raises: as `check`, ClockSkew."""
    found = await _owner(engine)
    if found is None:
        return
    owner, identity = found
    if owner.as_of is None or engine.clock.now() - owner.as_of >= AS_OF_INTERVAL / 2:
        await _raise_as_of(engine, owner.incarnation, identity)


async def adopt(engine: Engine) -> None:
    """Record this view as the owner, whatever the owner object names: an administrator decides
    that. Raises: QueueNotFound, ClockSkew, BlobsError, CredentialsRefused, ViewError."""
    identity = await engine.view.identity()
    if not identity.incarnations:
        raise QueueNotFound(f"the queue {engine.name} was never created")
    await _raise_as_of(engine, min(identity.incarnations), identity)
    engine.log.warning("the view was recorded as the owner of the bucket's bytes")


async def check_erasable(name: QueueName, view: View, blobs: Blobs) -> None:
    """Check that no other view owns a queue's objects, and no later state of this one, before they
    are all deleted with the queue: a copy has the incarnation of its original. The view must still
    have its limits. Raises: BucketNotOwned, ViewOutdated, BlobsError, CredentialsRefused,
    ViewError."""
    try:
        owner = Owner.decode(await blobs.get(key_of_owner(name)))
    except BlobMissing:
        return
    except ValueError as error:
        raise BucketNotOwned(f"the object {key_of_owner(name)} cannot be read") from error
    identity = await view.identity()
    if owner.incarnation not in identity.incarnations:
        raise BucketNotOwned(f"the bytes of {name} in the bucket are those of another view")
    if is_older(identity, owner):
        raise ViewOutdated(
            f"the bytes of {name} in the bucket are those of a later state of its view, of which"
            " this one is a copy, or was restored from a backup"
        )


async def _raise_as_of(engine: Engine, incarnation: UUID, identity: Identity) -> None:
    """Write the view first: a kill between leaves the object older than the view, never newer."""
    await engine.limits_cache.check_clock()
    as_of = following(identity, engine.clock.now())
    await engine.view.raise_as_of(incarnation, as_of)
    body = Owner(incarnation, as_of).encode(engine.name)
    await engine.blobs.put(key_of_owner(engine.name), body)


async def _owner(engine: Engine) -> tuple[Owner, Identity] | None:
    """Return the owner and this view's identity; None for a queue without limits, which has no
    owner yet and is not audited."""
    body = await _object(engine)
    if body is None:
        return None
    # Read the identity after the object: else a raise between the two would look like a later
    # state.
    identity = await engine.view.identity()
    try:
        owner = _checked(engine, body, identity)
    except BucketNotOwned:
        metrics.NOT_OWNED.labels(*engine.labels).set(1)
        raise
    metrics.NOT_OWNED.labels(*engine.labels).set(0)
    return owner, identity


async def _object(engine: Engine) -> bytes | None:
    """Return the owner object; create it where there is none and the queue has limits."""
    key = key_of_owner(engine.name)
    try:
        return await engine.blobs.get(key)
    except BlobMissing:
        identity = await engine.view.identity()
        if not identity.incarnations:
            return None
        owner = Owner(min(identity.incarnations), identity.as_of)
        await engine.blobs.put_new(key, owner.encode(engine.name))
        return await engine.blobs.get(key)  # another process may have been first


def _checked(engine: Engine, body: bytes, identity: Identity) -> Owner:
    """Return the owner if it is this view. Raises: BucketNotOwned."""
    try:
        owner = Owner.decode(body)
    except ValueError as error:
        raise BucketNotOwned(
            f"the bucket's object {key_of_owner(engine.name)} cannot be read",
            hint=f"find out what wrote it; {_ADOPT}",
        ) from error
    if owner.incarnation not in identity.incarnations:
        raise BucketNotOwned(
            f"the bytes of {engine.name} in the bucket are those of another view",
            hint="two installations need different buckets or bucket prefixes; where the keyspace"
            f" was lost and the mail of the other view is over, {_ADOPT}",
        )
    if is_older(identity, owner):
        raise BucketNotOwned(
            f"the view of {engine.name} is as of {identity.as_of}, the bytes in the bucket as of"
            f" {owner.as_of}: it was restored from a backup, or is a copy",
            hint="rows may be missing of mails that RabbitMQ still delivers; when it has, and no"
            f" later backup is to be restored, {_ADOPT}",
        )
    return owner
