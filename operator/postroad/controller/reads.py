"""Indexes of the kinds that reconciles depend on, kept by the watches; the API server as reconciles
read it: what is watched from memory, everything else by request.

An index is behind the API server by the time that an event takes. So of an object that the operator
has written since, the written one is read, and after a conflict the next read is a request. What
must not miss an object that is new, or read one that is gone, asks the API server itself. A
QueueCluster that no index has is asked for, too. Objects that no watch brings are kept so long that
reading them again costs a bounded rate of requests, however many namespaces have them.

An object that is replaced, restored, or lacking in one response of the API server is there again
soon. What is done because it is gone waits for `PATIENCE`.

Source: ADR 0046, 0077; Kubernetes documentation (API Concepts: resource versions are decimal
numbers, of which the greater one is newer)."""

import sys
from collections.abc import AsyncGenerator, Collection, Hashable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, TypeVar

from postroad.controller.kubernetes.api import (
    CHILDREN,
    CONSOLE,
    INSTANCE,
    JOB,
    LAST_APPLIED,
    MAIL_QUEUE,
    MAIL_QUEUE_TASK,
    MANAGED_BY,
    QUEUE_CLUSTER,
    TASK,
    Key,
    has_finalizer,
)
from postroad.controller.spec.cluster import class_of_cluster
from postroad.controller.spec.queue_resource import cluster_of
from postroad.controller.spec.task import queue_of_task
from postroad.errors import KubernetesConflict
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kind, Kubernetes, Object, WatchEvent

V = TypeVar("V")

OWN = (MAIL_QUEUE, QUEUE_CLUSTER, MAIL_QUEUE_TASK)
OWN_NAMES = frozenset(each.name for each in OWN)


class User(NamedTuple):
    """A MailQueue that refers to a QueueCluster. `state` changes with its spec, and when it is held
    or being deleted; not with its status."""

    key: Key
    state: tuple[object, ...]


class ChildVersion(NamedTuple):
    kind: str
    name: str
    version: str


class ObjectIndex(dict[Key, list[V]]):
    """Values by key, of which each object has its own."""

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[str, dict[Key, V]] = {}

    def put(self, uid: str, entries: dict[Key, V]) -> None:
        if self._of.get(uid, {}) == entries:
            return
        for key, value in self._of.pop(uid, {}).items():
            self[key].remove(value)
            if not self[key]:
                del self[key]
        if entries:
            self._of[uid] = entries
        for key, value in entries.items():
            self.setdefault(key, []).append(value)


class Indexes:
    """The indexes of a running operator. `users` and `classes` by the key of the QueueCluster;
    `tasks`, the keys of MailQueueTasks, by that of their MailQueue;
    `objects` by their own key where the kind is postroad's, and else by `place_for` the
    resources that they are labelled for."""

    def __init__(self) -> None:
        self.users: ObjectIndex[User] = ObjectIndex()
        self.classes: ObjectIndex[str] = ObjectIndex()
        self.tasks: ObjectIndex[Key] = ObjectIndex()
        self.objects: ObjectIndex[Object] = ObjectIndex()

    def put(self, body: Object, *, gone: bool = False) -> None:
        """Keep an object as it is now, or drop one that is gone."""
        uid = body["metadata"]["uid"]
        self.objects.put(uid, {} if gone else as_object(body))
        if body["kind"] == MAIL_QUEUE.name:
            self.users.put(uid, {} if gone else as_user(body))
        elif body["kind"] == QUEUE_CLUSTER.name:
            self.classes.put(uid, {} if gone else {key_of(body): class_of_cluster(body)})
        elif body["kind"] == MAIL_QUEUE_TASK.name:
            self.tasks.put(uid, {} if gone else {queue_of_task(body): key_of(body)})

    def class_of(self, cluster: Key) -> str | None:
        """Return the class of a QueueCluster; None where there is none, or its watch is behind."""
        return next(iter(self.classes[cluster])) if cluster in self.classes else None

    def users_of(self, cluster: Key) -> frozenset[User]:
        """Return the MailQueues that refer to a QueueCluster, allowed or not."""
        return frozenset(self.users[cluster]) if cluster in self.users else frozenset()

    def at(self, key: Key) -> Collection[Object]:
        return self.objects.get(key, ())

    def of(self, kind: Kind) -> Iterator[tuple[Key, Object]]:
        for key in list(self.objects):
            if key.kind == kind.name:
                for each in self.at(key):
                    yield key, each

    def children_of(self, queue: Key) -> frozenset[ChildVersion]:
        """Return the children of a MailQueue, or those of a QueueCluster: its console."""
        keys = [place_for(each.name, queue) for each in CHILDREN]
        return frozenset(as_child(each) for key in keys for each in self.at(key))


def as_user(body: Mapping[str, Any]) -> dict[Key, User]:
    """Return the entry of a MailQueue in the index of users."""
    metadata = body["metadata"]
    ending = metadata.get("deletionTimestamp")
    state = (metadata["uid"], metadata["generation"], ending, has_finalizer(body))
    return {cluster_of(body): User(key_of(body), state)}


def as_object(body: Mapping[str, Any]) -> dict[Key, Object]:
    """Return the entries of an object in the index of objects, without what no reconcile reads: of
    its managed fields, those of an autoscaler are enough."""
    places = places_of(body)
    if not places:
        return {}
    metadata = dict(body["metadata"])
    managed = metadata.pop("managedFields", None) or []
    if kept := [each for each in managed if each.get("subresource") == "scale"]:
        metadata["managedFields"] = kept
    if annotations := metadata.get("annotations"):
        metadata["annotations"] = {
            name: value for name, value in annotations.items() if name != LAST_APPLIED
        }
    return dict.fromkeys(places, shared({**body, "metadata": metadata}))


def shared(value: Any) -> Any:
    """Return JSON whose texts are one with the equal ones of all other objects: the bodies of a
    thousand MailQueues then have half of the memory."""
    if isinstance(value, str):  # most are
        return sys.intern(value)
    if isinstance(value, dict):
        kept = {}
        for name, each in value.items():  # a comprehension would be one more frame for each level
            kept[sys.intern(name)] = shared(each)
        return kept
    if isinstance(value, list):
        entries = []
        for each in value:
            entries.append(shared(each))  # noqa: PERF401
        return entries
    return value


_LABELS = {MAIL_QUEUE.name: INSTANCE, MAIL_QUEUE_TASK.name: TASK, QUEUE_CLUSTER.name: CONSOLE}
"""By the kind of a resource, the label of its children, which has its name."""


def places_of(body: Mapping[str, Any]) -> Sequence[Key]:
    """Return the keys of an object in the index: one for each resource whose children its labels
    let it be among, so that no further label hides it."""
    if body["kind"] in OWN_NAMES:
        return [key_of(body)]
    namespace, labels = body["metadata"]["namespace"], body["metadata"].get("labels") or {}
    return [
        place_for(body["kind"], Key(owner, namespace, labels[label]))
        for owner, label in _LABELS.items()
        if labels.get(label)
    ]


def place_for(kind: str, owner: Key) -> Key:
    """Return the key in the index of the children of a resource."""
    return Key(kind, owner.namespace, f"{_LABELS[owner.kind]}={owner.name}")


def as_child(body: Mapping[str, Any]) -> ChildVersion:
    metadata = body["metadata"]
    return ChildVersion(body["kind"], metadata["name"], metadata["resourceVersion"])


def owner_of(body: Mapping[str, Any]) -> Key | None:
    """Return the key of the resource that an object was made for."""
    metadata = body["metadata"]
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("controller") and owner["kind"] in OWN_NAMES:
            return Key(owner["kind"], metadata["namespace"], owner["name"])
    task = (metadata.get("labels") or {}).get(TASK)
    return Key(MAIL_QUEUE_TASK.name, metadata["namespace"], task) if task else None


def key_of(body: Mapping[str, Any]) -> Key:
    return Key(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])


WATCHED = (*OWN, *CHILDREN, JOB)


class WatchedKubernetes:
    """`Kubernetes` over another one and the indexes of its watches. `namespaces`: the watched ones;
    none: all. The objects that it returns are those of the indexes: no caller changes one."""

    def __init__(self, api: Kubernetes, indexes: Indexes, namespaces: Sequence[str] = ()) -> None:
        self._api = api
        self._indexes = indexes
        self._namespaces = tuple(namespaces)
        self._written: dict[Key, Object] = {}
        self._conflicting: set[Key] = set()
        self._gone: frozenset[str] = frozenset()

    # Reads

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        if kind not in OWN or namespace is None or not self._watches(namespace):
            return await self._api.get(kind, namespace, name)
        key = Key(kind.name, namespace, name)
        if key in self._conflicting:
            return await self._read_anew(kind, key)
        if indexed := self._indexed(key):
            return self._newest(indexed[-1])
        self._written.pop(key, None)
        # A MailQueue that was applied with its QueueCluster is often seen first.
        return await self._api.get(kind, namespace, name) if kind is QUEUE_CLUSTER else None

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Sequence[Object]:
        if namespace is not None and not self._watches(namespace):
            return await self._api.list(kind, namespace, labels)
        if kind in OWN and not labels:
            keys = {key for key, _ in self._indexes.of(kind) if namespace in (None, key.namespace)}
            found = [self._indexed(key) for key in keys]
            return [self._newest(each[-1]) for each in found if each]
        wanted = dict(each.split("=", 1) for each in labels.split(",") if each)
        for owner, label in _LABELS.items():
            if kind in WATCHED and namespace and wanted.keys() == {MANAGED_BY, label}:
                return self._children(place_for(kind.name, Key(owner, namespace, wanted[label])))
        return await self._api.list(kind, namespace, labels)

    def _children(self, place: Key) -> Sequence[Object]:
        found = {key_of(each): each for each in self._indexed(place)}
        written = [each for each in self._written.values() if place in places_of(each)]
        found |= {key_of(each): each for each in written if key_of(each) not in found}
        return [self._newest(each) for each in found.values()]

    def _indexed(self, place: Key) -> Sequence[Object]:
        """Return the objects that an index has under a key, the newest last: it keeps those whose
        deletion fell into an interruption of the watch."""
        found = self._indexes.at(place)
        there = [each for each in found if each["metadata"]["uid"] not in self._gone]
        return sorted(there, key=version_of)

    def _newest(self, indexed: Object) -> Object:
        written = self._written.get(key_of(indexed))
        if written is None:
            return indexed
        return written if version_of(written) > version_of(indexed) else indexed

    async def _read_anew(self, kind: Kind, key: Key) -> Object | None:
        found = await self._api.get(kind, key.namespace, key.name)
        self._conflicting.discard(key)
        if found is not None:
            self._written[key] = found
        return found

    def _watches(self, namespace: str) -> bool:
        return not self._namespaces or namespace in self._namespaces

    # What the watches bring

    def notice(self, body: Object, *, gone: bool) -> None:
        """Forget the written object that an event of the watch has caught up with."""
        written = self._written.get(key_of(body))
        if written is None:
            return
        same = written["metadata"]["uid"] == body["metadata"]["uid"]
        if (same and gone) or version_of(body) >= version_of(written):
            del self._written[key_of(body)]

    async def missed_deletions(self) -> Sequence[tuple[Kind, Object]]:
        """Ask the API server which of the indexed objects there are; return the others, which are
        not read any more. Raises: KubernetesError."""
        missed: list[tuple[Kind, Object]] = []
        for kind in WATCHED:
            known = [each for _, each in self._indexes.of(kind)]
            known += [each for key, each in self._written.items() if key.kind == kind.name]
            labels = "" if kind in OWN else f"{MANAGED_BY}=postroad"
            there = {
                uid
                for namespace in self._namespaces or (None,)
                for uid in await self._api.uids(kind, namespace, labels)
            }
            missing = [each for each in known if each["metadata"]["uid"] not in there]
            missed += [(kind, each) for each in missing if await self._is_gone(kind, each)]
        for _, each in missed:
            self._written.pop(key_of(each), None)
        new = [each for each in missed if each[1]["metadata"]["uid"] not in self._gone]
        self._gone = frozenset(each["metadata"]["uid"] for _, each in missed)
        return new

    async def _is_gone(self, kind: Kind, body: Object) -> bool:
        """True if an object that a list lacks is gone: a list may be empty by a fault."""
        key, uid = key_of(body), body["metadata"]["uid"]
        if uid in self._gone:
            return True
        found = await self._api.get(kind, key.namespace, key.name)
        return found is None or found["metadata"]["uid"] != uid

    # Everything else is a request

    async def uids(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Collection[str]:
        return await self._api.uids(kind, namespace, labels)

    def watch(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        return self._api.watch(kind, namespace, labels)

    async def serves(self, *kinds: Kind) -> bool:
        return await self._api.serves(*kinds)

    async def may(
        self, verb: str, kind: Kind, namespace: str | None = None, *, subresource: str = ""
    ) -> bool:
        return await self._api.may(verb, kind, namespace, subresource=subresource)

    async def apply(self, kind: Kind, wanted: Object, *, force: bool = True) -> Object:
        return self._remember(kind, await self._api.apply(kind, wanted, force=force))

    async def create(self, kind: Kind, wanted: Object) -> Object:
        return await self._api.create(kind, wanted)

    async def patch(
        self, kind: Kind, namespace: str | None, name: str, change: Mapping[str, Any]
    ) -> Object | None:
        try:
            changed = await self._api.patch(kind, namespace, name, change)
        except KubernetesConflict:
            self._conflicting.add(Key(kind.name, namespace or "", name))
            raise
        return changed and self._remember(kind, changed)

    async def replace_status(self, kind: Kind, changed: Object) -> Object | None:
        try:
            written = await self._api.replace_status(kind, changed)
        except KubernetesConflict:
            self._conflicting.add(key_of(changed))
            raise
        return written and self._remember(kind, written)

    async def delete(self, kind: Kind, found: Object) -> None:
        await self._api.delete(kind, found)

    def _remember(self, kind: Kind, written: Object) -> Object:
        if kind in WATCHED and self._watches(written["metadata"]["namespace"]):
            self._written[key_of(written)] = written
            for place in places_of(written):
                for each in self._indexed(place):
                    self.notice(each, gone=False)
        return written


def version_of(body: Mapping[str, Any]) -> int:
    """Return the version of an object, of which a newer one is greater."""
    return int(body["metadata"]["resourceVersion"])


READS_A_SECOND = 3.0
"""Objects that are read again; many are then kept for longer."""

MIN_AGE = timedelta(seconds=4)
"""For so long an object is kept at least: less than the interval at which the Secrets of a
QueueCluster are compared. A missing one is not kept."""

SAVED = timedelta(minutes=1)
"""Reads that were not needed for so long may come later, at once: the reconciles of a QueueCluster,
which read the most, are a minute apart."""


class Reads(Protocol):
    """The part of `Kubernetes` that reads one object."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """Return an object, or None when there is none. Raises: KubernetesError."""


class RememberedReads:
    """Reads of Secrets, ConfigMaps with authorities, and namespaces."""

    def __init__(self, api: Kubernetes, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._read: dict[Key, tuple[timedelta, Object]] = {}
        self._next = timedelta()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """Return an object, or None when there is none. Raises: KubernetesError."""
        key, now = Key(kind.name, namespace or "", name), self._clock.elapsed()
        if key in self._read:
            at, kept = self._read[key]
            if now - at < self._age or not self._may_read_again(now):
                return kept
        found = await self._api.get(kind, namespace, name)
        self._read.pop(key, None)
        if found is not None:
            self._read[key] = now, found
        return found

    @property
    def _age(self) -> timedelta:
        """The age at which objects are read again. Of many it is more than it takes to read all, so
        that each is before the first one is again."""
        return max(MIN_AGE, timedelta(seconds=1.5 * len(self._read) / READS_A_SECOND))

    def _may_read_again(self, now: timedelta) -> bool:
        if self._next > now:
            return False
        self._next = max(self._next, now - SAVED) + timedelta(seconds=1 / READS_A_SECOND)
        return True

    def forget_old(self) -> None:
        """Forget the objects that no reconcile asks for any more."""
        now, age = self._clock.elapsed(), self._age
        self._read = {key: each for key, each in self._read.items() if now - each[0] < 2 * age}


PATIENCE = timedelta(minutes=10)
"""Longer than a replacement by a tool for deployments takes, and than most restores."""


class Absences:
    """The objects that this process found missing. Another process begins anew, and so does one
    that did not look for an object for so long that it may have come and gone meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Hashable, timedelta] = {}
        self._seen: dict[Hashable, timedelta] = {}

    def end(self, of: Hashable) -> None:
        """Record that an object is there, or that its absence has had its effect. Idempotent."""
        self._since.pop(of, None)
        self._seen.pop(of, None)

    def has(self, of: Hashable) -> bool:
        """True if an object was missing when it was last looked for."""
        return of in self._since

    def lasts(self, of: Hashable, patience: timedelta = PATIENCE) -> bool:
        """True if an object that is missing now has been missing for so long."""
        now = self._clock.elapsed()
        if now - self._seen.get(of, now) >= PATIENCE:
            self._since.pop(of)
        self._seen[of] = now
        return now - self._since.setdefault(of, now) >= patience
