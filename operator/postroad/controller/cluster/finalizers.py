"""Resources that the operator's finalizer keeps: those whose deletion erases something.

A MailQueue with `deletionPolicy: Delete` has it before anything is made for it on the servers. Its
QueueCluster has it as long as such a MailQueue refers to it, because the deletion needs its
servers. Every other resource can be deleted while no operator runs."""

from collections.abc import Sequence

from postroad.controller.cluster.clusters import Clusters
from postroad.controller.kubernetes.api import (
    FINALIZER,
    MAIL_QUEUE,
    QUEUE_CLUSTER,
    has_finalizer,
    log_action,
)
from postroad.controller.spec.parts import allowed_by
from postroad.controller.spec.queue_resource import cluster_of, is_erased_with_its_resource
from postroad.ports.kubernetes import Kind, Kubernetes, Object


class Finalizers:
    """Sets and removes finalizers. Every method may raise KubernetesError, and KubernetesConflict
    for a resource that has changed since it was read."""

    def __init__(self, api: Kubernetes, clusters: Clusters) -> None:
        self._api = api
        self._clusters = clusters

    async def add(self, found: Object) -> Object:
        """Set the finalizer of a MailQueue whose deletion erases something, then that of its
        QueueCluster; return the MailQueue as it is then. In this order, because the reconcile of
        the QueueCluster finds the MailQueues by their finalizers."""
        if has_finalizer(found) or not is_erased_with_its_resource(found):
            return found
        held = await self._set(MAIL_QUEUE, found, wanted=True)
        cluster = cluster_of(found)
        resource = await self._api.get(QUEUE_CLUSTER, cluster.namespace, cluster.name)
        if resource is not None and "deletionTimestamp" not in resource["metadata"]:
            await self._set(QUEUE_CLUSTER, resource, wanted=True)
        return held

    async def release(self, found: Object) -> Object:
        """Remove the finalizer of a MailQueue whose deletion erases nothing; return that."""
        if is_erased_with_its_resource(found):
            return found
        return await self.remove(MAIL_QUEUE, found)

    async def add_or_release_cluster(self, found: Object) -> Object:
        """Set or remove the finalizer of a QueueCluster; return it as it is then."""
        return await self._set(QUEUE_CLUSTER, found, wanted=bool(await self.holders(found)))

    async def holders(self, found: Object) -> Sequence[Object]:
        """Return the MailQueues whose deletion needs a QueueCluster, of those that it allows. None
        is missed: a QueueCluster that is gone too early leaves their mail on its servers."""
        metadata = found["metadata"]
        place = metadata["namespace"], metadata["name"]
        for certain in (False, True) if has_finalizer(found) else (False,):
            users = await self._clusters.users.allowed(*place, allowed_by(found), certain=certain)
            if holders := [each for each in users if has_finalizer(each)]:
                return holders
        return []

    async def remove(self, kind: Kind, found: Object) -> Object:
        """Remove the finalizer, so that the API server deletes the resource. Idempotent."""
        return await self._set(kind, found, wanted=False)

    async def _set(self, kind: Kind, found: Object, *, wanted: bool) -> Object:
        if has_finalizer(found) == wanted:
            return found
        metadata = found["metadata"]
        others = [each for each in metadata.get("finalizers") or [] if each != FINALIZER]
        change = {
            "metadata": {
                "finalizers": [*others, FINALIZER] if wanted else others,
                "resourceVersion": metadata["resourceVersion"],
            }
        }
        changed = await self._api.patch(kind, metadata["namespace"], metadata["name"], change)
        resource = f"{kind.name} {metadata['namespace']}/{metadata['name']}"
        log_action("set a finalizer" if wanted else "removed a finalizer", of=resource)
        return changed or found
