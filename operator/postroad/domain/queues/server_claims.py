"""For which QueueCluster an object at a server is claimed: a keyspace, queues, or a bucket.

The claim stands at the server itself, because two Kubernetes clusters that use it see nothing else
of each other. Source: ADR 0040."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import sha256


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
