"""View that the bytes in a bucket belong to: the owner object beside them names it.

The object names the view by its incarnation, made with the queue, and by the last instant at which
maintenance raised `as_of`: first in the view, then in the object. So a view whose `as_of` is
earlier than the object's is older than the bytes: a copy, or restored from a backup. Source:
ADR 0024."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from postroad.domain.queues.names import QueueName

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a view, which tells it from others and from earlier states of itself.
    `incarnations`: none where the queue was never created, several where processes created it at
    once. `as_of` None: never raised."""

    incarnations: Set[UUID]
    as_of: datetime | None


@dataclass(frozen=True, slots=True)
class Owner:
    """The view that an owner object names, with its `as_of` when the object was written."""

    incarnation: UUID
    as_of: datetime | None

    def encode(self, queue: QueueName) -> bytes:
        """Return the owner object. `queue` is for administrators who read it."""
        as_of = None if self.as_of is None else self.as_of.isoformat()
        document = {"queue": str(queue), "incarnation": str(self.incarnation), "as_of": as_of}
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, body: bytes) -> Owner:
        """Read an owner object. Raises: ValueError."""
        try:
            document = json.loads(body)
            as_of = document["as_of"]
            at = None if as_of is None else datetime.fromisoformat(as_of)
            if at is not None and at.tzinfo is None:
                raise ValueError("as_of has no zone")
            return cls(UUID(document["incarnation"]), at)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError("not an owner object") from error


def is_older(identity: Identity, owner: Owner) -> bool:
    """Return whether a view is older than the state that its bucket's owner object names."""
    if owner.as_of is None:
        return False
    return identity.as_of is None or identity.as_of < owner.as_of


def following(identity: Identity, now: datetime) -> datetime:
    """Return the next `as_of`, to the millisecond: now, or just after the present one if the clock
    that wrote that was ahead."""
    at = now.replace(microsecond=now.microsecond // 1000 * 1000)
    return at if identity.as_of is None else max(at, identity.as_of + _MILLISECOND)
