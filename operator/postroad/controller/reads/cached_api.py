"""The API server as reconciles read it: what is watched from memory, everything else by request.

An index is behind the API server by the time that an event takes. So of an object that the operator
has written since, the written one is read, and after a conflict the next read is a request. What
must not miss an object that is new, or read one that is gone, asks the API server itself. A
QueueCluster that no index has is asked for, too.

Source: ADR 0046; Kubernetes documentation (API Concepts: resource versions are decimal numbers, of
which the greater one is newer).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any

from postroad.controller.kubernetes.api import CHILDREN, INSTANCE, MANAGED_BY, QUEUE_CLUSTER, Key
from postroad.controller.reads.indexes import OWN, Indexes, key_of, place_of
from postroad.errors import KubernetesConflict
from postroad.ports.kubernetes import Kind, Kubernetes, Object, WatchEvent

WATCHED = (*OWN, *CHILDREN)


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
        if kind in CHILDREN and namespace and wanted.keys() == {MANAGED_BY, INSTANCE}:
            return self._children(kind, namespace, wanted[INSTANCE])
        return await self._api.list(kind, namespace, labels)

    def _children(self, kind: Kind, namespace: str, instance: str) -> Sequence[Object]:
        place = Key(kind.name, namespace, instance)
        found = {key_of(each): each for each in self._indexed(place)}
        written = [each for each in self._written.values() if place_of(each) == place]
        found |= {key_of(each): each for each in written if key_of(each) not in found}
        return [self._newest(each) for each in found.values()]

    def _indexed(self, place: Key | None) -> Sequence[Object]:
        """Return the objects that an index has under a key, the newest last: it keeps those whose
        deletion fell into an interruption of the watch."""
        found = self._indexes.at(place) if place else ()
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
        """Whether an object that a list lacks is gone: a list may be empty by a fault."""
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
            for each in self._indexed(place_of(written)):
                self.notice(each, gone=False)
        return written


def version_of(body: Mapping[str, Any]) -> int:
    """Return the version of an object, of which a newer one is greater."""
    return int(body["metadata"]["resourceVersion"])
