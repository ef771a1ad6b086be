"""What the watches know of the kinds that reconciles depend on, as indexes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from postroad.controller.kubernetes.api import (
    CHILDREN,
    INSTANCE,
    LAST_APPLIED,
    MAIL_QUEUE,
    QUEUE_CLUSTER,
    Key,
    has_finalizer,
)
from postroad.controller.spec.cluster import class_of_cluster
from postroad.controller.spec.queue_resource import cluster_of
from postroad.ports.kubernetes import Kind, Object

V = TypeVar("V")

OWN = (MAIL_QUEUE, QUEUE_CLUSTER)
OWN_NAMES = frozenset(each.name for each in OWN)


class User(NamedTuple):
    """A MailQueue that refers to a QueueCluster. `state` changes with its spec, and when it is held
    or being deleted; not with its status."""

    key: Key
    state: tuple[object, ...]


class ChildVersion(NamedTuple):
    """A version of a child."""

    kind: str
    name: str
    version: str


class ObjectIndex(dict[Key, list[V]]):
    """Values by key, of which each object has its own."""

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[str, dict[Key, V]] = {}

    def put(self, uid: str, entries: dict[Key, V]) -> None:
        """Replace the entries of an object."""
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
    `objects` by their own key where the kind is postroad's, and else by kind, namespace and
    `INSTANCE`."""

    def __init__(self) -> None:
        self.users: ObjectIndex[User] = ObjectIndex()
        self.classes: ObjectIndex[str] = ObjectIndex()
        self.objects: ObjectIndex[Object] = ObjectIndex()

    def put(self, body: Object, *, gone: bool = False) -> None:
        """Keep an object as it is now, or drop one that is gone."""
        uid = body["metadata"]["uid"]
        self.objects.put(uid, {} if gone else as_object(body))
        if body["kind"] == MAIL_QUEUE.name:
            self.users.put(uid, {} if gone else as_user(body))
        elif body["kind"] == QUEUE_CLUSTER.name:
            self.classes.put(uid, {} if gone else {key_of(body): class_of_cluster(body)})

    def class_of(self, cluster: Key) -> str | None:
        """Return the class of a QueueCluster; None where there is none, or its watch is behind."""
        return next(iter(self.classes[cluster])) if cluster in self.classes else None

    def users_of(self, cluster: Key) -> frozenset[User]:
        """Return the MailQueues that refer to a QueueCluster, allowed or not."""
        return frozenset(self.users[cluster]) if cluster in self.users else frozenset()

    def at(self, key: Key) -> Collection[Object]:
        """Return the objects under a key."""
        return self.objects.get(key, ())

    def of(self, kind: Kind) -> Iterator[tuple[Key, Object]]:
        """Iterate over all objects of a kind."""
        for key in list(self.objects):
            if key.kind == kind.name:
                for each in self.at(key):
                    yield key, each

    def children_of(self, queue: Key) -> frozenset[ChildVersion]:
        """Return the children of a MailQueue."""
        keys = [Key(each.name, queue.namespace, queue.name) for each in CHILDREN]
        return frozenset(as_child(each) for key in keys for each in self.at(key))


def as_user(body: Mapping[str, Any]) -> dict[Key, User]:
    """Return the entry of a MailQueue in the index of users."""
    metadata = body["metadata"]
    ending = metadata.get("deletionTimestamp")
    state = (metadata["uid"], metadata["generation"], ending, has_finalizer(body))
    return {cluster_of(body): User(key_of(body), state)}


def as_object(body: Mapping[str, Any]) -> dict[Key, Object]:
    """Return the entry of an object in the index of objects, without what no reconcile reads: of
    its managed fields, those of an autoscaler are enough."""
    place = place_of(body)
    if place is None:
        return {}
    metadata = dict(body["metadata"])
    managed = metadata.pop("managedFields", None) or []
    if kept := [each for each in managed if each.get("subresource") == "scale"]:
        metadata["managedFields"] = kept
    if annotations := metadata.get("annotations"):
        metadata["annotations"] = {
            name: value for name, value in annotations.items() if name != LAST_APPLIED
        }
    return {place: shared({**body, "metadata": metadata})}


def shared(value: Any) -> Any:
    """Return JSON whose texts are one with the equal ones of all other objects: the bodies of a
    thousand MailQueues then have half of the memory."""
    if isinstance(value, str):  # most are
        return sys.intern(value)
    if isinstance(value, dict):
        return {sys.intern(name): shared(each) for name, each in value.items()}
    return [shared(each) for each in value] if isinstance(value, list) else value


def place_of(body: Mapping[str, Any]) -> Key | None:
    """Return under which key an object is indexed; None for one that is no resource of postroad's,
    and no child."""
    if body["kind"] in OWN_NAMES:
        return key_of(body)
    metadata = body["metadata"]
    instance = (metadata.get("labels") or {}).get(INSTANCE)
    return Key(body["kind"], metadata["namespace"], instance) if instance else None


def as_child(body: Mapping[str, Any]) -> ChildVersion:
    """Return the version of a child."""
    metadata = body["metadata"]
    return ChildVersion(body["kind"], metadata["name"], metadata["resourceVersion"])


def owner_of(body: Mapping[str, Any]) -> Key | None:
    """Return the key of the MailQueue that owns an object."""
    metadata = body["metadata"]
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("controller") and owner["kind"] == MAIL_QUEUE.name:
            return Key(MAIL_QUEUE.name, metadata["namespace"], owner["name"])
    return None


def key_of(body: Mapping[str, Any]) -> Key:
    """Return the key of an object."""
    return Key(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
