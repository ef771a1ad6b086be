"""MailQueues that use a QueueCluster: those that refer to it, of namespaces that it allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.controller.cluster.plans import QueuePlace
from postroad.controller.kubernetes.api import MAIL_QUEUE, NAMESPACE, QUEUE_CLUSTER, Key
from postroad.controller.reads import Reads
from postroad.controller.spec.parts import AllowedNamespaces, allowed_by, allows
from postroad.controller.spec.queue_resource import Queue, own_bucket, referring
from postroad.errors import ClusterNotAllowed
from postroad.ports.kubernetes import Kubernetes, Object


def has_configuration(queue: Mapping[str, Any]) -> bool:
    """True if a MailQueue has begun, so that it has something on the servers."""
    return "configuration" in (queue.get("status") or {})


class ClusterUsers:
    """Finds the MailQueues of QueueClusters. `certain`: what misses none, where `api` has them from
    memory. `reads`: reads of namespaces. `namespaces`: the watched ones; none: all."""

    def __init__(
        self,
        api: Kubernetes,
        certain: Kubernetes,
        reads: Reads,
        namespaces: Sequence[str],
    ) -> None:
        self._api = api
        self._certain = certain
        self._reads = reads
        self._namespaces = tuple(namespaces)

    async def admit(self, found: Object, queue: Queue) -> None:
        """Check that a MailQueue may use a QueueCluster. Raises: ClusterNotAllowed."""
        own, name = found["metadata"]["namespace"], found["metadata"]["name"]
        asking = queue.name.namespace
        if not await self._allows(allowed_by(found), own, asking):
            raise ClusterNotAllowed(
                f"QueueCluster {own}/{name} does not allow MailQueues of namespace {asking}",
                hint="change its spec.allowedNamespaces, or use another cluster",
            )

    async def referring(
        self, namespace: str, name: str, *, certain: bool = False
    ) -> Sequence[Object]:
        """Return the MailQueues of the watched namespaces that refer to a QueueCluster. `certain`:
        also those that no watch has brought yet."""
        watched = await self._watched(self._certain if certain else self._api)
        return referring(watched, Key(QUEUE_CLUSTER.name, namespace, name))

    async def others_with_bucket(self, place: QueuePlace) -> Sequence[Object]:
        """Return other MailQueues that stay, whose own bucket has the same name as that of a
        queue. Those of another QueueCluster count too, because it may have the same store."""
        return [
            each
            for each in await self._watched(self._certain)
            if each["metadata"]["uid"] != place.uid
            and "deletionTimestamp" not in each["metadata"]
            and own_bucket(each, place.bucket_prefix) == place.bucket
        ]

    async def _watched(self, api: Kubernetes) -> Sequence[Object]:
        return [
            each
            for watched in self._namespaces or (None,)
            for each in await api.list(MAIL_QUEUE, watched)
        ]

    async def allowed(
        self, namespace: str, name: str, allowed: AllowedNamespaces, *, certain: bool = False
    ) -> Sequence[Object]:
        """Return the MailQueues that refer to a QueueCluster and that it allows. Others have no
        effect on it, since every user who may create a MailQueue somewhere can refer to it.
        `certain`: also those that no watch has brought yet."""
        found = await self.referring(namespace, name, certain=certain)
        asking = {each["metadata"]["namespace"] for each in found}
        let_in = {each for each in asking if await self._allows(allowed, namespace, each)}
        return [each for each in found if each["metadata"]["namespace"] in let_in]

    async def _allows(self, allowed: AllowedNamespaces, own: str, asking: str) -> bool:
        labels: Mapping[str, str] = {}
        if allowed.selector and asking != own:
            namespace = await self._reads.get(NAMESPACE, None, asking) or {}
            labels = namespace.get("metadata", {}).get("labels") or {}
        return allows(allowed, own, asking, labels)
