"""What the MailQueues of a QueueCluster depend on beside its spec: its servers, and Secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from postroad.controller.cluster_spec import QueueClusterSpec
from postroad.controller.credentials import read_credentials
from postroad.controller.drift import hash_of
from postroad.errors import CredentialsMissing, KubernetesRefused
from postroad.ports.kubernetes import Kubernetes, Object


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts as the reconcile of a QueueCluster finds them: which servers answer, and texts that
    change with the Secrets of the QueueCluster and of other namespaces with MailQueues."""

    answers: Mapping[str, bool]
    connection: str | None
    secrets: Mapping[str, str]

    def differ(self, before: ClusterFacts, namespace: str) -> bool:
        """Whether MailQueues of a namespace are reconciled because of the difference."""
        return (
            (self.answers, self.connection) != (before.answers, before.connection)
        ) or self.secrets.get(namespace) != before.secrets.get(namespace)


async def secrets_of(api: Kubernetes, cluster: Object, queues: Sequence[Object]) -> dict[str, str]:
    """Return a text for each other namespace with MailQueues of a QueueCluster, which changes with
    the Secrets that their pods read. Raises: KubernetesUnavailable."""
    try:
        spec = QueueClusterSpec.model_validate(cluster["spec"])
    except ValidationError:
        return {}
    own = cluster["metadata"]["namespace"]
    found = {}
    for namespace in sorted({each["metadata"]["namespace"] for each in queues} - {own}):
        try:
            found[namespace] = hash_of((await read_credentials(api, namespace, spec)).versions)
        except (CredentialsMissing, KubernetesRefused) as error:
            found[namespace] = str(error)
    return found
