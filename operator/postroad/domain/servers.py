"""For which QueueCluster an object at a server is claimed: a keyspace, queues, or a bucket.

The claim stands at the server itself, because two Kubernetes clusters that use it see nothing else
of each other. Source: ADR 0040.

Policies of RabbitMQ that drop messages of our queues: pure.

An administrator of RabbitMQ may apply a policy to every queue of a vhost. One that bounds a queue,
or lets messages or queues expire, drops references: their mail waits until maintenance finds out.

The users at the broker that the programs of one mail queue have: pure.

A broker has its users for all vhosts together, so a name carries the token of the QueueCluster
(`domain.claims`), which no other QueueCluster has. Source: ADR 0042.

Places of the members of quorum queues, as they are and as they should be.

RabbitMQ chooses the members when a queue is declared, from the nodes that run then. A queue that
was declared while one node ran stays on that node, however many join later.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

from postroad.domain.queues.names import QueueName


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


_NAME = re.compile(r"postroad\.([-a-z0-9]+)\.([-a-z0-9]+)\.([0-9a-f]{12})\.([ab])")


@dataclass(frozen=True, slots=True, order=True)
class QueueUser:
    """One of the two users of a mail queue, `a` or `b`. `token`: of the QueueCluster.

    >>> str(QueueUser(QueueName("mail", "outgoing"), "4d0964520104"))
    'postroad.mail.outgoing.4d0964520104.a'
    """

    queue: QueueName
    token: str
    dead_letter: str = "a"

    def __str__(self) -> str:
        return f"postroad.{self.queue}.{self.token}.{self.dead_letter}"

    @property
    def other(self) -> QueueUser:
        return replace(self, dead_letter="b" if self.dead_letter == "a" else "a")

    @classmethod
    def parse(cls, text: str) -> QueueUser | None:
        """Read a user's name; None for a user that is no queue's.

        >>> QueueUser.parse("guest") is None
        True
        """
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        return cls(QueueName(found[1], found[2]), found[3], found[4])


OURS = "postroad."
"""Prefix of the names of our queues."""


@dataclass(frozen=True, slots=True)
class QuorumQueue:
    """One quorum queue. `online` are the members that run, `policy` the keys of the policies that
    apply to it."""

    name: str
    members: tuple[str, ...]
    online: tuple[str, ...]
    policy: frozenset[str] = frozenset()


def members_to_add(queue: QuorumQueue, running: Collection[str], copies: int) -> list[str]:
    """Return the nodes that should become members, so that the queue has so many copies.

    None while fewer nodes run: two members stop as soon as one of them does, where a single one
    stops only with its own node.

    >>> members_to_add(QuorumQueue("work", ("a",), ("a",)), ["a", "b", "c"], 3)
    ['b', 'c']
    >>> members_to_add(QuorumQueue("work", ("a",), ("a",)), ["a", "b"], 3)
    []
    """
    lacks = max(copies - len(queue.members), 0)
    if len(running) < copies:
        return []
    free = sorted(set(running) - set(queue.members))
    first = sum(queue.name.encode()) % len(free) if free else 0
    return sorted((free[first:] + free[:first])[:lacks])


def too_few_members(
    queues: Sequence[QuorumQueue], running: Collection[str], copies: int, vhost: str
) -> tuple[str, ...]:
    """Return what the members of our queues lack, and what to do about it, as words for a
    condition. Nothing while too few nodes run: that is a condition of its own."""
    if len(running) < copies:
        return ()
    ours = [each for each in queues if each.name.startswith(OURS)]
    lacking = [each for each in ours if len(each.members) < copies]
    away = [each for each in ours if each not in lacking and len(each.online) < copies]
    found = (
        _message(lacking, "members", copies, _command(lacking, running, copies, vhost)),
        _message(away, "members online", copies, "check their nodes"),
    )
    return tuple(each for each in found if each)


def _message(queues: Sequence[QuorumQueue], what: str, copies: int, remedy: str) -> str:
    if not queues:
        return ""
    count = f"{len(queues)} queue{'s have' if len(queues) > 1 else ' has'}"
    return f"{count} fewer than {copies} {what} (such as {queues[0].name}): {remedy}"


def _command(
    queues: Sequence[QuorumQueue], running: Collection[str], copies: int, vhost: str
) -> str:
    nodes = {node for each in queues for node in members_to_add(each, running, copies)}
    patterns = f"--vhost-pattern '^{re.escape(vhost)}$' --queue-pattern '^{re.escape(OURS)}'"
    return "; ".join(f"rabbitmq-queues grow {node} all {patterns}" for node in sorted(nodes))


DROPPING = frozenset({"expires", "max-length", "max-length-bytes", "message-ttl"})
"""Keys of policies by which a queue loses messages."""


def dropping(queues: Sequence[QuorumQueue]) -> tuple[str, ...]:
    """Return what policies do to our queues, as words for a condition; nothing when all is well.

    >>> dropping([QuorumQueue("postroad.a.b.work", (), (), frozenset({"max-length"}))])
    ('a policy with max-length drops messages of postroad.a.b.work: let it spare ^postroad',)
    """
    hit = [each for each in queues if each.name.startswith(OURS) and each.policy & DROPPING]
    if not hit:
        return ()
    keys = ", ".join(sorted(frozenset[str]().union(*(each.policy for each in hit)) & DROPPING))
    more = f" and {len(hit) - 1} more" if len(hit) > 1 else ""
    return (f"a policy with {keys} drops messages of {hit[0].name}{more}: let it spare ^postroad",)
