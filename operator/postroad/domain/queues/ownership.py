"""View that the bytes in a bucket belong to: the owner object beside them names it.

The object names the view by its incarnation, made with the queue, and by the last instant at which
maintenance raised `as_of`: first in the view, then in the object. So a view whose `as_of` is
earlier than the object's is older than the bytes: a copy, or restored from a backup. Source:
ADR 0024.

A claim says for which QueueCluster an object at a server is: a keyspace, queues, or a bucket. It
stands at the server itself, because two Kubernetes clusters that use it see nothing else of each
other. Source: ADR 0040."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from hashlib import sha256
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


@dataclass(frozen=True, slots=True)
class Claimant:
    """A QueueCluster, by the uid of the namespace kube-system, which tells its Kubernetes cluster
    from others, and by its own namespace and name: one that is made again under its name is the
    same. `queue`: the MailQueue of it that a bucket is claimed for."""

    kubernetes: str
    namespace: str
    name: str
    queue: str = ""

    def __str__(self) -> str:
        cluster = f"QueueCluster {self.namespace}/{self.name}"
        of_queue = f"MailQueue {self.queue.replace('.', '/')} of {cluster}"
        return f"{of_queue if self.queue else cluster} in Kubernetes cluster {self.kubernetes}"

    @property
    def token(self) -> str:
        """Twelve hexadecimal digits for the QueueCluster, short enough for RabbitMQ's replies.

        >>> Claimant("7f0c", "mail", "main").token
        '4d0964520104'
        """
        text = "\0".join((self.kubernetes, self.namespace, self.name))
        return sha256(text.encode()).hexdigest()[:12]

    def encode(self) -> dict[str, str]:
        """Return the claimant as a document."""
        return asdict(self)

    @classmethod
    def decode(cls, document: object) -> Claimant:
        """Read a document. Raises: ValueError."""
        if not isinstance(document, dict):
            raise ValueError("not a claimant")
        try:
            values = {each: document[each] for each in ("kubernetes", "namespace", "name", "queue")}
        except KeyError as error:
            raise ValueError(f"a claimant without {error}") from error
        if not all(isinstance(each, str) for each in values.values()):
            raise ValueError("not a claimant")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim on one object. `token`: the claimant's; empty where the server tells no more than
    that there is one. `claimant` None: the server told only the token. `number`: how many claims
    the object has had, where the server counts them; `former`: the tokens of those."""

    token: str
    claimant: Claimant | None
    number: int = 0
    former: frozenset[str] = frozenset()

    @classmethod
    def of(cls, claimant: Claimant, number: int = 0, former: frozenset[str] = frozenset()) -> Claim:
        return cls(claimant.token, claimant, number, former)

    @property
    def id(self) -> str:
        """Identifier that an administrator names who lets another QueueCluster adopt the object:
        with the number where there is one, so that it means this claim and no later one."""
        return f"{self.token}-{self.number}" if self.number else self.token

    def is_of(self, claimant: Claimant) -> bool:
        return self.claimant == claimant if self.claimant else self.token == claimant.token

    def __str__(self) -> str:
        return str(self.claimant) if self.claimant else f"another QueueCluster ({self.token})"
