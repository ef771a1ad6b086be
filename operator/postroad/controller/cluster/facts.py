"""Facts that MailQueues depend on beside the spec of their QueueCluster: its servers, Secrets."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from postroad.controller.credentials import UNREADABLE, read_credentials
from postroad.controller.kubernetes.drift import hash_of
from postroad.controller.reads import Reads
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.errors import KubernetesUnavailable
from postroad.ports.kubernetes import Object


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts as the reconcile of a QueueCluster finds them: which servers answer, and texts that
    change with the Secrets of the QueueCluster and of other namespaces with MailQueues."""

    answers: Mapping[str, bool]
    connection: str | None
    secrets: Mapping[str, str]
    conflict: str | None = None
    """Why the QueueCluster does not have its keyspace."""

    @property
    def of_all(self) -> tuple[object, ...]:
        """Facts that MailQueues of every namespace depend on."""
        return self.answers, self.connection, self.conflict


class KnownFacts:
    """The facts about each QueueCluster as they were last found, and how often they changed: a
    MailQueue that saw another number has to be reconciled in full."""

    def __init__(self) -> None:
        self._known: dict[str, ClusterFacts] = {}
        self._changes: Counter[tuple[str, str | None]] = Counter()

    def of(self, uid: str) -> ClusterFacts | None:
        """Return the facts as they were last recorded."""
        return self._known.get(uid)

    def record(self, uid: str, facts: ClusterFacts) -> None:
        """Record the facts as they are now. The first ones are no change."""
        before = self._known.get(uid, facts)
        self._known[uid] = facts
        if facts.of_all != before.of_all:
            self._changes[uid, None] += 1
        for namespace in facts.secrets.keys() | before.secrets.keys():
            if facts.secrets.get(namespace) != before.secrets.get(namespace):
                self._changes[uid, namespace] += 1

    def version(self, uid: str, namespace: str) -> tuple[int, int]:
        """Return numbers that change with the facts that MailQueues of a namespace depend on."""
        return self._changes[uid, None], self._changes[uid, namespace]

    def forget(self, uid: str) -> None:
        """Forget a QueueCluster that is gone. Idempotent."""
        self._known.pop(uid, None)
        for each in [key for key in self._changes if key[0] == uid]:
            del self._changes[each]


async def secrets_of(
    api: Reads, cluster: Object, queues: Sequence[Object], known: ClusterFacts | None
) -> dict[str, str]:
    """Return a text for each other namespace with MailQueues of a QueueCluster, which changes with
    the Secrets that their pods read. It stays as `known` where the API server does not answer."""
    try:
        spec = QueueClusterSpec.model_validate(cluster["spec"])
    except ValidationError:
        return {}
    own = cluster["metadata"]["namespace"]
    found = {}
    for namespace in sorted({each["metadata"]["namespace"] for each in queues} - {own}):
        try:
            shared = spec.rabbitmq.users is None
            read = await read_credentials(api, namespace, spec, with_broker_login=shared)
            found[namespace] = hash_of(read.versions)
        except UNREADABLE as error:
            found[namespace] = str(error)
        except KubernetesUnavailable:
            found[namespace] = known.secrets.get(namespace, "") if known else ""
    return found
