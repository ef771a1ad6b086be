"""Access to QueueClusters: their servers, their tables, which are changed one at a time; and the
one of several operators that each is assigned to.

An operator of some namespaces sees their MailQueues alone. Tables computed over these would not
fit the others, and a QueueCluster that none of these uses would be let go. So an operator
leaves a QueueCluster and its MailQueues alone while the operator that its status names watches a
namespace that this one does not. The API server decides between two at once, by the version of the
status."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from pydantic import ValidationError

from postroad import errors
from postroad.controller.cluster.claims import Claims
from postroad.controller.cluster.plans import Holder, KeyspacePlan, need_of, table_options
from postroad.controller.cluster.users import ClusterUsers
from postroad.controller.credentials import (
    NO_CREDENTIALS,
    UNREADABLE,
    ClusterCredentials,
    Connections,
    read_credentials,
)
from postroad.controller.kubernetes.api import QUEUE_CLUSTER, log_action
from postroad.controller.kubernetes.drift import hash_of
from postroad.controller.reads import Absences, Reads
from postroad.controller.spec.cluster import DEFAULT_CLASS, Cassandra, QueueClusterSpec, spec_of
from postroad.controller.spec.queue_resource import Queue, adopted_by
from postroad.controller.status.conditions import (
    BLOBS_READY,
    BROKER_READY,
    VIEW_READY,
    Finding,
    count_error,
    ends_reconcile,
    failed,
)
from postroad.errors import KubernetesUnavailable, ResourceConflict
from postroad.ports.kubernetes import Kubernetes, Object
from postroad.ports.servers import Checked, Servers
from postroad.ports.view import SchemaChanges, TableOptions

ALL = "*"
"""Stands for all namespaces."""

WATCHED_NAMESPACES = "watchedNamespaces"
"""The field of the status."""

MAX_WATCHED = 1000
"""Namespaces that one operator may name, and the field has room for; it watches all without."""


def watched_namespaces(namespaces: Sequence[str]) -> list[str]:
    """Return what an operator of these namespaces writes into the status; none: all.

    >>> watched_namespaces(["mail", "infra"]), watched_namespaces([])
    (['infra', 'mail'], ['*'])
    """
    return sorted(set(namespaces)) or [ALL]


def is_assigned_elsewhere(found: Mapping[str, Any], namespaces: Sequence[str]) -> bool:
    """True if a QueueCluster is assigned to an operator that watches more than these namespaces."""
    recorded = set((found.get("status") or {}).get(WATCHED_NAMESPACES) or ())
    return bool(namespaces) and not recorded <= set(namespaces)


def is_left(cluster: Mapping[str, Any], queue_in: str, namespaces: Sequence[str]) -> bool:
    """True if the operator that a QueueCluster is assigned to reconciles its MailQueues of a
    namespace too, so that this one leaves them alone."""
    recorded = (cluster.get("status") or {}).get(WATCHED_NAMESPACES) or ()
    return is_assigned_elsewhere(cluster, namespaces) and (ALL in recorded or queue_in in recorded)


def assigned_elsewhere(found: Mapping[str, Any], namespaces: Sequence[str]) -> ResourceConflict:
    """Return the error about such a QueueCluster."""
    metadata = found["metadata"]
    recorded = (found.get("status") or {}).get(WATCHED_NAMESPACES) or ()
    place = f"{metadata['namespace']}/{metadata['name']}"
    return ResourceConflict(
        f"QueueCluster {place} is assigned to an operator that watches {_named(recorded)},"
        f" and this one watches {_named(watched_namespaces(namespaces))}",
        hint="let one operator watch all namespaces with MailQueues of the QueueCluster; where the"
        f" other one is gone for good, remove {WATCHED_NAMESPACES} from the QueueCluster's status",
    )


def _named(recorded: Sequence[str]) -> str:
    return "all namespaces" if ALL in recorded else f"namespaces {', '.join(recorded)}"


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


T = TypeVar("T")

KeyspacePlace = tuple[frozenset[str], int, str]
"""Contact points, port and keyspace."""


class SchemaLocks:
    """A lock for each keyspace, as long as work holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[KeyspacePlace, asyncio.Lock] = WeakValueDictionary()
        self._running: set[asyncio.Task[Any]] = set()

    async def alone(self, place: KeyspacePlace, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run one work at a time for a keyspace. Work whose caller has given up keeps the lock
        until Cassandra has answered."""

        async def locked() -> T:
            async with self._locks.setdefault(place, asyncio.Lock()):
                return await work()

        running = asyncio.create_task(locked())
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        running.add_done_callback(_seen)
        return await asyncio.shield(running)

    async def finish(self) -> None:
        """Return when no work is under way."""
        await asyncio.gather(*self._running, return_exceptions=True)


def place_of(cassandra: Cassandra) -> KeyspacePlace:
    """Return what two QueueClusters over one keyspace have in common, as far as their specs show
    it."""
    return frozenset(cassandra.contact_points), cassandra.port, cassandra.keyspace


def _seen(running: asyncio.Task[Any]) -> None:
    """Look at the error of work whose caller has given up, which asyncio would log."""
    if not running.cancelled():
        running.exception()


CONDITIONS = {"rabbitmq": BROKER_READY, "cassandra": VIEW_READY, "s3": BLOBS_READY}


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
    """True if a reconcile of the QueueCluster has made its tables, and keeps them as declared."""
    away: Mapping[str, Finding] = field(default_factory=dict)
    """The conditions of servers that did not answer when they were last checked."""

    version: tuple[object, ...] = ()
    """Changes with the QueueCluster, and with what is known of its servers and Secrets."""

    adopted: str = ""
    """The id of the claim on the keyspace that it may take over."""

    @property
    def holder(self) -> Holder:
        """The QueueCluster as what claims objects."""
        return Holder(self.uid, self.namespace, self.name, adopted=self.adopted)

    @property
    def keyspace(self) -> KeyspacePlan:
        return KeyspacePlan(
            self.holder,
            self.servers,
            self.spec.cassandra,
            self.spec.allowed_namespaces,
            self.has_tables,
            self.away.get(VIEW_READY),
        )


class Clusters:
    """Opens QueueClusters and creates their tables. `namespaces`: the watched ones; none: all.
    `ambient_credentials`: a QueueCluster without S3's Secret gets those of the operator's pod.
    `certain`: what misses no MailQueue, where `api` has them from memory. `reads`: reads of what is
    read for each namespace."""

    def __init__(
        self,
        api: Kubernetes,
        connections: Connections,
        absences: Absences,
        namespaces: Sequence[str] = (),
        *,
        ambient_credentials: bool = False,
        operator_class: str = DEFAULT_CLASS,
        certain: Kubernetes | None = None,
        reads: Reads | None = None,
    ) -> None:
        self.operator_class = operator_class
        self._api = api
        self.absences = absences
        self.reads: Reads = reads or api
        self.users = ClusterUsers(api, certain or api, self.reads, namespaces)
        self._connections = connections
        self.namespaces = tuple(namespaces)
        self._ambient_credentials = ambient_credentials
        self._credentials: dict[str, tuple[int, ClusterCredentials]] = {}
        self._specs: dict[str, tuple[object, QueueClusterSpec]] = {}
        self._away: dict[str, Mapping[str, Finding]] = {}
        self._with_tables: set[str] = set()
        """Uids; a CRD without the field of the status would show none."""
        self.facts = KnownFacts()
        self.claims = Claims(certain or api, self.users, absences)
        self._schema = SchemaLocks()

    async def for_queue(self, queue: Queue) -> Cluster:
        """Return the cluster of a MailQueue, with the Secrets that the last reconcile of the
        QueueCluster read: reading them for each queue would be most of all requests. Whether
        the keyspace is the cluster's is still to be checked (`claims`).

        Raises: ClusterNotFound, ClusterNotAllowed, AmbientCredentialsDenied,
        CredentialsMissing, CertificateUnusable, ResourceConflict, KubernetesError."""
        namespace, name = queue.cluster_namespace, queue.spec.cluster_ref.name
        found = await self._find(namespace, name)
        if is_assigned_elsewhere(found, self.namespaces):
            raise assigned_elsewhere(found, self.namespaces)
        await self.users.admit(found, queue)
        cluster = await self.open(found, anew=False)
        uid, generation = cluster.uid, found["metadata"]["generation"]
        version = (uid, generation, *self.facts.version(uid, queue.name.namespace))
        return replace(cluster, version=version)

    async def for_deletion(self, queue: Queue) -> Cluster:
        """Return the cluster of a MailQueue that is being deleted, whatever its allowedNamespaces
        are. Without the Secrets, the cluster has the connections that were opened with them. Errors
        as `for_queue`, and ViewError."""
        namespace, name = queue.cluster_namespace, queue.spec.cluster_ref.name
        found = await self._find(namespace, name)
        try:
            cluster = await self.open(found)
        except (errors.CredentialsMissing, errors.CertificateUnusable):
            uid = found["metadata"]["uid"]
            servers = self._connections.last(uid)
            if servers is None:
                raise
            spec = self._spec_of(found)
            cluster = Cluster(uid, namespace, name, spec, NO_CREDENTIALS, servers)
        await self.claims.check_keyspace(cluster.keyspace)
        return cluster

    async def open(self, found: Object, *, anew: bool = True) -> Cluster:
        """Return the cluster behind a QueueCluster. Its Secrets are read, unless `anew` is false
        and they were read at its generation. Raises: AmbientCredentialsDenied, CredentialsMissing,
        CertificateUnusable, KubernetesError, pydantic.ValidationError."""
        metadata, spec = found["metadata"], self._spec_of(found)
        uid, namespace = metadata["uid"], metadata["namespace"]
        generation, credentials = self._credentials.pop(uid, (None, NO_CREDENTIALS))
        if anew or generation != metadata["generation"]:
            if self._lacks_credentials(spec):
                raise errors.AmbientCredentialsDenied(
                    f"QueueCluster {namespace}/{metadata['name']} names no credentials of S3, and "
                    "the operator lends none of its own"
                )
            credentials = await read_credentials(self._api, namespace, spec, before=credentials)
        self._credentials[uid] = metadata["generation"], credentials
        return Cluster(
            uid=uid,
            namespace=namespace,
            name=metadata["name"],
            spec=spec,
            credentials=credentials,
            servers=self._connections.to(uid, spec, credentials),
            has_tables=spec.paused or self.has_tables(found),
            away=self._away.get(uid, {}),
            adopted=adopted_by(found),
        )

    async def has_new_secrets(self, found: Object) -> bool:
        """True if the Secrets of a QueueCluster hold something else than when it was last opened,
        or can be read now and could not then, or the API server lacks answers about them for
        some time. Raises: KubernetesUnavailable."""
        metadata = found["metadata"]
        known = self._credentials.get(metadata["uid"])
        try:
            spec = self._spec_of(found)
            if known is None and self._lacks_credentials(spec):
                return False
            before = NO_CREDENTIALS if known is None else known[1]
            namespace = metadata["namespace"]
            read = await read_credentials(self.reads, namespace, spec, before=before)
        except ValidationError:
            return False
        except (*UNREADABLE, errors.KubernetesUnavailable) as error:
            if ends_reconcile(error):
                raise
            return known is not None
        return known is None or known[1].versions != read.versions

    def _spec_of(self, found: Object) -> QueueClusterSpec:
        """Return the spec of a QueueCluster, which is parsed again where it is another than last:
        the reconciles of all its MailQueues read it. Raises: pydantic.ValidationError."""
        uid, declared = found["metadata"]["uid"], found["spec"]
        known = self._specs.get(uid)
        if known is None or known[0] != declared:
            known = self._specs[uid] = declared, spec_of(found)
        return known[1]

    def _lacks_credentials(self, spec: QueueClusterSpec) -> bool:
        return spec.s3.secret_ref is None and not self._ambient_credentials

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

    async def make_tables(self, plan: KeyspacePlan) -> tuple[TableOptions, SchemaChanges]:
        """Create the keyspace and the tables, or alter what differs, for all queues of the cluster;
        return the options, and what was changed. Cassandra is asked each time, because a user may
        have altered or dropped tables. Raises: ConfigurationRefused, ResourceConflict, ViewError.
        """
        place = place_of(plan.cassandra)
        made = await self._schema.alone(place, lambda: self._make_tables(plan))
        self._with_tables.add(plan.holder.uid)
        return made

    def has_tables(self, found: Object) -> bool:
        """True if a reconcile of a QueueCluster has made its tables, and keeps them as declared."""
        reported = "tables" in (found.get("status") or {})
        return reported or found["metadata"]["uid"] in self._with_tables

    async def finish(self) -> None:
        """Return when no change of tables is under way."""
        await self._schema.finish()

    async def _make_tables(self, plan: KeyspacePlan) -> tuple[TableOptions, SchemaChanges]:
        holder = plan.holder
        users = await self.users.allowed(holder.namespace, holder.name, plan.allowed)
        needs = [need for each in users if (need := need_of(each)) is not None]
        options = table_options(plan.cassandra, needs)
        held = await self.claims.claim_keyspace(plan)
        changes = await plan.servers.views().create(options)
        if held is None:
            await self.claims.claim_keyspace(plan)
        if changes != SchemaChanges():
            place = f"{holder.namespace}/{holder.name}"
            named = {f"tables_{what}": ", ".join(each) for what, each in asdict(changes).items()}
            log_action("tables changed", cluster=place, **named)
        return options, changes

    async def release(self, uid: str, namespace: str, name: str) -> None:
        """Release the keyspace of a QueueCluster that is gone, unless MailQueues refer to it. Best
        effort. Raises: KubernetesError."""
        servers = self._connections.last(uid)
        if servers is None or not self.claims.is_held(uid):
            return
        if not await self.users.referring(namespace, name, certain=True):
            holder = Holder(uid, namespace, name)
            await self.claims.release_keyspace(servers.keyspace_claim(), holder)

    def forget(self, uid: str) -> None:
        """Close the connections to a cluster that is gone. Idempotent."""
        self.claims.forget(uid)
        self._with_tables.discard(uid)
        self._credentials.pop(uid, None)
        self._specs.pop(uid, None)
        self._away.pop(uid, None)
        self.facts.forget(uid)
        self._connections.forget(uid)

    async def _find(self, namespace: str, name: str) -> Object:
        found = await self._api.get(QUEUE_CLUSTER, namespace, name)
        if found is None:
            raise errors.ClusterNotFound(
                f"there is no QueueCluster {name} in namespace {namespace}",
                hint="create it; the operator then builds the queue",
            )
        return found
