"""Access to QueueClusters: namespaces that may use them, their servers, their tables."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from postroad.controller.actions import log_action
from postroad.controller.api import MAIL_QUEUE, NAMESPACE, QUEUE_CLUSTER
from postroad.controller.attempts import count_error
from postroad.controller.cluster_facts import KnownFacts
from postroad.controller.cluster_spec import (
    AllowedNamespaces,
    Cassandra,
    QueueClusterSpec,
    allowed_by,
    allows,
    resolve_hosts,
)
from postroad.controller.conditions import (
    BLOBS_READY,
    BROKER_READY,
    VIEW_READY,
    Finding,
    failed,
)
from postroad.controller.connections import Connections
from postroad.controller.credentials import (
    NO_CREDENTIALS,
    ClusterCredentials,
    read_credentials,
)
from postroad.controller.queue_resource import Queue
from postroad.controller.quotas import Quotas
from postroad.controller.tables import need_of, table_options
from postroad.domain.names import QueueName
from postroad.errors import (
    AmbientCredentialsDenied,
    CertificateUnusable,
    ClusterNotAllowed,
    ClusterNotFound,
    ConfigurationRefused,
    CredentialsMissing,
    InvalidQueueName,
)
from postroad.ports.kubernetes import Kubernetes, Object
from postroad.ports.servers import Checked, Servers
from postroad.ports.view import SchemaChanges, TableOptions

T = TypeVar("T")

CONDITIONS = {"rabbitmq": BROKER_READY, "cassandra": VIEW_READY, "s3": BLOBS_READY}

Place = tuple[frozenset[str], int, str]
"""Contact points, port and keyspace."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A QueueCluster, with credentials and servers."""

    uid: str
    namespace: str
    name: str
    spec: QueueClusterSpec
    credentials: ClusterCredentials
    servers: Servers
    has_tables: bool = False
    """Whether a reconcile of the QueueCluster has made its tables, and keeps them as declared."""
    away: Mapping[str, Finding] = field(default_factory=dict)
    """The conditions of servers that did not answer when they were last checked."""

    stamp: tuple[object, ...] = ()
    """Changes with the QueueCluster, and with what is known of its servers and Secrets."""


class Clusters:
    """Opens QueueClusters and creates their tables. `namespaces`: the watched ones; none: all.
    `ambient_credentials`: a QueueCluster without S3's Secret gets those of the operator's pod."""

    def __init__(
        self,
        api: Kubernetes,
        connections: Connections,
        namespaces: Sequence[str] = (),
        *,
        ambient_credentials: bool = False,
    ) -> None:
        self._api = api
        self._connections = connections
        self._namespaces = tuple(namespaces)
        self._ambient_credentials = ambient_credentials
        self._made: dict[str, Servers] = {}
        self._credentials: dict[str, tuple[int, ClusterCredentials]] = {}
        self._away: dict[str, Mapping[str, Finding]] = {}
        self.facts = KnownFacts()
        self.quotas = Quotas()
        self._schema: defaultdict[Place, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def for_queue(self, queue: Queue, *, begun: bool) -> Cluster:
        """Return the cluster of a MailQueue, with the Secrets that the last reconcile of the
        QueueCluster read: reading them for each queue would be most of all requests. One that has
        `begun` keeps its place under the quota.

        Raises: ClusterNotFound, ClusterNotAllowed, QuotaExceeded, AmbientCredentialsDenied,
        CredentialsMissing, CertificateUnusable, KubernetesError.
        """
        namespace, name = queue.cluster_namespace, queue.spec.cluster_ref.name
        found = await self._find(namespace, name)
        if not await self._allows(allowed_by(found), namespace, queue.name.namespace):
            raise ClusterNotAllowed(
                f"QueueCluster {namespace}/{name} does not allow MailQueues of namespace "
                f"{queue.name.namespace}",
                hint="change its spec.allowedNamespaces, or use another cluster",
            )
        uid, current = found["metadata"]["uid"], found["metadata"]["generation"]
        generation, credentials = self._credentials.get(uid, (None, None))
        if credentials is None or generation != current:
            cluster = await self.open(found)
        else:
            cluster = self._opened(found, credentials)
        if not begun:
            await self._require_place(found, cluster.spec, queue.uid)
        stamp = (uid, current, *self.facts.stamp(uid, queue.name.namespace))
        return replace(cluster, stamp=stamp)

    async def _require_place(self, found: Object, spec: QueueClusterSpec, uid: str) -> None:
        if spec.quota.queues is None:
            return
        if not self.quotas.is_counted(found, uid):
            place = found["metadata"]["namespace"], found["metadata"]["name"]
            self.quotas.count(found, spec, await self.users(*place, spec.allowed_namespaces))
        self.quotas.require(found, spec, uid)

    async def for_deletion(self, queue: Queue) -> Cluster:
        """Return the cluster of a MailQueue that is being deleted, whatever its allowedNamespaces
        are. Without the Secrets, the cluster has the connections that were opened with them. Errors
        as `for_queue`."""
        namespace, name = queue.cluster_namespace, queue.spec.cluster_ref.name
        found = await self._find(namespace, name)
        try:
            return await self.open(found)
        except (CredentialsMissing, CertificateUnusable):
            uid = found["metadata"]["uid"]
            servers = self._connections.last(uid)
            if servers is None:
                raise
            spec = resolve_hosts(QueueClusterSpec.model_validate(found["spec"]), namespace)
            return Cluster(uid, namespace, name, spec, NO_CREDENTIALS, servers)

    async def open(self, found: Object) -> Cluster:
        """Read the Secrets of a QueueCluster, and return the cluster behind it.

        Raises: AmbientCredentialsDenied, CredentialsMissing, CertificateUnusable, KubernetesError,
        pydantic.ValidationError.
        """
        metadata = found["metadata"]
        self._credentials.pop(metadata["uid"], None)
        spec = QueueClusterSpec.model_validate(found["spec"])
        if spec.s3.secret_ref is None and not self._ambient_credentials:
            raise AmbientCredentialsDenied(
                f"QueueCluster {metadata['namespace']}/{metadata['name']} names no credentials of "
                "S3, and the operator lends none of its own"
            )
        credentials = await read_credentials(self._api, metadata["namespace"], spec)
        self._credentials[metadata["uid"]] = metadata["generation"], credentials
        return self._opened(found, credentials)

    def _opened(self, found: Object, credentials: ClusterCredentials) -> Cluster:
        metadata = found["metadata"]
        spec = resolve_hosts(QueueClusterSpec.model_validate(found["spec"]), metadata["namespace"])
        return Cluster(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            spec=spec,
            credentials=credentials,
            servers=self._connections.to(metadata["uid"], spec, credentials),
            has_tables="tables" in (found.get("status") or {}),
            away=self._away.get(metadata["uid"], {}),
        )

    async def check(self, uid: str, *, brief: bool) -> dict[str, Checked] | None:
        """Ask the servers of a QueueCluster whether they answer, and keep it for its queues. None
        when no connections are open."""
        servers = self._connections.last(uid)
        if servers is None:
            return None
        checked = await servers.check(brief=brief)
        for server, each in checked.items():
            count_error(server, each.error)
        self._away[uid] = {
            CONDITIONS[server]: failed(CONDITIONS[server], each.error)
            for server, each in checked.items()
            if each.error is not None and each.error.transient
        }
        return checked

    async def queues(self, namespace: str, name: str) -> Sequence[Object]:
        """Return the MailQueues of the watched namespaces that refer to a QueueCluster."""
        return [each for each in await self._watched() if refers_to(each, namespace, name)]

    async def others_with_bucket(self, queue: Queue, cluster: Cluster) -> Sequence[Object]:
        """Return other MailQueues that stay, whose own bucket has the same name as that of a
        queue. Those of another QueueCluster count too, because it may have the same store."""
        bucket, prefix = queue.bucket(cluster.spec), cluster.spec.s3.bucket_prefix
        return [
            each
            for each in await self._watched()
            if each["metadata"]["uid"] != queue.uid
            and "deletionTimestamp" not in each["metadata"]
            and own_bucket(each, prefix) == bucket
        ]

    async def _watched(self) -> Sequence[Object]:
        return [
            each
            for watched in self._namespaces or (None,)
            for each in await self._api.list(MAIL_QUEUE, watched)
        ]

    async def users(
        self, namespace: str, name: str, allowed: AllowedNamespaces
    ) -> Sequence[Object]:
        """Return the MailQueues that refer to a QueueCluster and that it allows. Others have no
        effect on it, since every user who may create a MailQueue somewhere can refer to it."""
        referring = await self.queues(namespace, name)
        asking = {each["metadata"]["namespace"] for each in referring}
        let_in = {each for each in asking if await self._allows(allowed, namespace, each)}
        return [each for each in referring if each["metadata"]["namespace"] in let_in]

    async def make_tables(self, cluster: Cluster) -> tuple[TableOptions, SchemaChanges]:
        """Create the keyspace and the tables, or alter what differs, for all queues of the cluster;
        return the options, and what was changed. Cassandra is asked each time, because a user may
        have altered or dropped tables. Raises: ConfigurationRefused, ViewError."""
        return await self._under_lock(cluster, lambda: self._make_tables(cluster))

    async def ensure_tables(self, cluster: Cluster) -> None:
        """Create the tables of a new QueueCluster, for a queue that is reconciled before it. Later
        they are the QueueCluster's: it reports what it repairs, and a row lifetime that is refused.
        Raises: ViewError."""

        async def ensure() -> None:
            if cluster.has_tables or self._made.get(cluster.uid) is cluster.servers:
                return
            with suppress(ConfigurationRefused):
                await self._make_tables(cluster)
            self._made[cluster.uid] = cluster.servers

        await self._under_lock(cluster, ensure)

    async def _under_lock(self, cluster: Cluster, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run one work at a time for a keyspace: Cassandra may give a table two ids when two hosts
        create it in the same moment. Work whose caller has given up keeps the lock until Cassandra
        has answered."""

        async def locked() -> T:
            async with self._schema[place_of(cluster.spec.cassandra)]:
                return await work()

        running = asyncio.create_task(locked())
        running.add_done_callback(_seen)
        return await asyncio.shield(running)

    async def _make_tables(self, cluster: Cluster) -> tuple[TableOptions, SchemaChanges]:
        allowed = cluster.spec.allowed_namespaces
        users = await self.users(cluster.namespace, cluster.name, allowed)
        needs = [need for each in users if (need := need_of(each)) is not None]
        options = table_options(cluster.spec.cassandra, needs)
        changes = await cluster.servers.views().create(options)
        if changes != SchemaChanges():
            place = f"{cluster.namespace}/{cluster.name}"
            named = {name: ", ".join(tables) for name, tables in asdict(changes).items()}
            log_action("tables changed", cluster=place, **named)
        return options, changes

    def forget(self, uid: str) -> None:
        """Close the connections to a cluster that is gone. Idempotent."""
        self._made.pop(uid, None)
        self._credentials.pop(uid, None)
        self._away.pop(uid, None)
        self.facts.forget(uid)
        self.quotas.forget(uid)
        self._connections.forget(uid)

    async def _find(self, namespace: str, name: str) -> Object:
        found = await self._api.get(QUEUE_CLUSTER, namespace, name)
        if found is None:
            raise ClusterNotFound(
                f"there is no QueueCluster {name} in namespace {namespace}",
                hint="create it; the operator then builds the queue",
            )
        return found

    async def _allows(self, allowed: AllowedNamespaces, own: str, asking: str) -> bool:
        labels: Mapping[str, str] = {}
        if allowed.selector and asking != own:
            namespace = await self._api.get(NAMESPACE, None, asking) or {}
            labels = namespace.get("metadata", {}).get("labels") or {}
        return allows(allowed, own, asking, labels)


def refers_to(queue: Mapping[str, Any], namespace: str, name: str) -> bool:
    """Whether a MailQueue refers to this QueueCluster."""
    reference = queue["spec"].get("clusterRef") or {}
    referred = reference.get("namespace") or queue["metadata"]["namespace"]
    return (referred, reference.get("name")) == (namespace, name)


def own_bucket(queue: Mapping[str, Any], prefix: str) -> str | None:
    """Return the name of a MailQueue's own bucket; None for one that shares a bucket."""
    if (queue["spec"].get("blobs") or {}).get("bucket"):
        return None
    metadata = queue["metadata"]
    try:
        return QueueName(metadata["namespace"], metadata["name"]).bucket(prefix)
    except InvalidQueueName:
        return None


def place_of(cassandra: Cassandra) -> Place:
    """Return what two QueueClusters over one keyspace have in common, as far as their specs show
    it."""
    return frozenset(cassandra.contact_points), cassandra.port, cassandra.keyspace


def _seen(running: asyncio.Task[Any]) -> None:
    """Look at the error of work whose caller has given up, which asyncio would log."""
    if not running.cancelled():
        running.exception()
