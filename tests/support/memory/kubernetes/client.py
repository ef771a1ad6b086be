"""One client of a Kubernetes API server in memory, as one field manager."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from postroad.errors import KubernetesConflict, KubernetesRefused
from postroad.ports.kubernetes import COMPLETE, LISTED, Kind, Object, WatchEvent
from support.memory.fault_injection import FaultInjector
from support.memory.kubernetes.field_ownership import (
    SERVER_FIELDS,
    Manager,
    applied,
    updated,
)
from support.memory.kubernetes.world import (
    KubernetesWorld,
    ObjectPlace,
    copied,
    has_labels,
    parsed,
)

STATUS_OF_ITS_OWN = frozenset(
    {
        *("mailqueues", "mailqueuetasks", "queueclusters", "deployments", "poddisruptionbudgets"),
        *("pods", "services", "jobs", "statefulsets"),
    }
)
"""Kinds whose status only `replace_status` writes."""

Effect = Callable[[], Object | None]


class MemoryKubernetes:
    """The `Kubernetes` port over a world. A step is named by verb, kind and place, as in `get
    secrets mail/rabbitmq`. `refused`: verbs and kinds that this client has no right to; `update` is
    that of the status."""

    def __init__(
        self, world: KubernetesWorld, manager: str = "postroad", faults: FaultInjector | None = None
    ) -> None:
        self.world = world
        self.faults = faults or FaultInjector()
        self.refused: set[tuple[str, str]] = set()
        self._manager = manager

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        place = ObjectPlace(kind.plural, namespace or "", name)
        return await self._step("get", place, lambda: self.world.objects.get(place))

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Sequence[Object]:
        found = await self._step(
            "list",
            ObjectPlace(kind.plural, namespace or "", ""),
            lambda: {
                "items": [
                    each
                    for place, each in self.world.objects.items()
                    if place.is_of(kind, namespace) and has_labels(each, labels)
                ]
            },
        )
        items: Sequence[Object] = (found or {})["items"]
        return items

    async def uids(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Collection[str]:
        return {each["metadata"]["uid"] for each in await self.list(kind, namespace, labels)}

    async def watch(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        while True:
            since, objects = str(self.world.version), [*self.world.objects.items()]
            for place, each in objects:
                if place.is_of(kind, namespace) and has_labels(each, labels):
                    yield WatchEvent(LISTED, copied(each))
            yield WatchEvent(COMPLETE, {})
            async with aclosing(self.world.watch(kind, namespace, labels, since)) as events:
                async for event in events:
                    if event.happened == "ERROR":
                        break
                    yield event

    async def serves(self, *kinds: Kind) -> bool:
        await self._step("list", ObjectPlace("kinds", "", ""), lambda: None)
        return not self.world.kinds or self.world.kinds.issuperset(kinds)

    async def may(
        self, verb: str, kind: Kind, namespace: str | None = None, *, subresource: str = ""
    ) -> bool:
        await self._step("create", ObjectPlace("reviews", namespace or "", ""), lambda: None)
        return (verb, kind.plural) not in self.refused

    async def apply(self, kind: Kind, wanted: Object, *, force: bool = True) -> Object:
        place = _place_of(kind, wanted)

        def effect() -> Object:
            found = self.world.objects.get(place)
            if found is not None:
                _check_version(found, wanted)
            else:
                self._require("create", place)
            manager = Manager(self._manager, "Apply")
            begin = found or _new(wanted)
            declared = _without_status(place, wanted)
            return self.world.put(place, applied(begin, declared, manager, force=force))

        return await self._written("patch", place, effect)

    async def create(self, kind: Kind, wanted: Object) -> Object:
        place = _place_of(kind, wanted)

        def effect() -> Object:
            if place in self.world.objects:
                raise KubernetesConflict(f'{kind.plural} "{place.name}" already exists')
            return self._put(place, _new(wanted), {**_without_status(place, wanted)})

        return await self._written("create", place, effect)

    async def patch(
        self, kind: Kind, namespace: str | None, name: str, change: Mapping[str, Any]
    ) -> Object | None:
        place = ObjectPlace(kind.plural, namespace or "", name)

        def effect() -> Object | None:
            found = self.world.objects.get(place)
            if found is None:
                return None
            _check_version(found, change)
            return self._put(place, found, merged_patch(found, _without_status(place, change)))

        return await self._step("patch", place, effect)

    async def replace_status(self, kind: Kind, changed: Object) -> Object | None:
        place = _place_of(kind, changed)

        def effect() -> Object | None:
            found = self.world.objects.get(place)
            if found is None:
                return None
            _check_version(found, changed)
            given = (changed.get("status") or {}).items()
            kept = {field: parsed(each) for field, each in given if field not in self.world.pruned}
            return self._put(place, found, {**found, "status": kept}, "status")

        return await self._step("update", place, effect)

    async def delete(self, kind: Kind, found: Object) -> None:
        place = _place_of(kind, found)

        def effect() -> None:
            present = self.world.objects.get(place)
            if present is None:
                return
            if present["metadata"]["uid"] != found["metadata"]["uid"]:
                raise KubernetesConflict(f"Precondition failed: UID of {place.name} differs")
            self.world.delete(place)

        await self._step("delete", place, effect)

    def _put(
        self, place: ObjectPlace, found: Object, wanted: Object, subresource: str = ""
    ) -> Object:
        kept = {key: found["metadata"].get(key) for key in SERVER_FIELDS}
        metadata = {**wanted["metadata"], **{k: v for k, v in kept.items() if v is not None}}
        changed = {**wanted, "metadata": metadata}
        manager = Manager(self._manager, "Update", subresource)
        return self.world.put(place, updated(found, changed, manager))

    async def _written(self, verb: str, place: ObjectPlace, effect: Effect) -> Object:
        written = await self._step(verb, place, effect)
        assert written is not None
        return written

    def _require(self, verb: str, place: ObjectPlace) -> None:
        if (verb, place.plural) in self.refused:
            raise KubernetesRefused(f"{place.plural} is forbidden: cannot {verb} it")

    async def _step(self, verb: str, place: ObjectPlace, effect: Effect) -> Object | None:
        """Run one step, and return a copy of its result."""

        def permitted() -> Object | None:
            self._require(verb, place)
            return copied(effect())

        where = "/".join(each for each in place[1:] if each)
        return await self.faults("kubernetes", f"{verb} {place.plural} {where}".strip(), permitted)


def merged_patch(found: Any, change: Any) -> Any:
    """Return what a merge patch makes of a value. Source: RFC 7386."""
    if not isinstance(change, Mapping):
        return copied(change)
    merged = dict(found) if isinstance(found, Mapping) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merged_patch(merged.get(key), value)
    return merged


def _place_of(kind: Kind, found: Mapping[str, Any]) -> ObjectPlace:
    metadata = found["metadata"]
    return ObjectPlace(kind.plural, metadata.get("namespace") or "", metadata["name"])


def _new(wanted: Object) -> Object:
    """Return what there is of an object before its creation: its names."""
    names = ("name", "namespace")
    metadata = {key: wanted["metadata"][key] for key in names if key in wanted["metadata"]}
    return {"apiVersion": wanted["apiVersion"], "kind": wanted["kind"], "metadata": metadata}


def _without_status(place: ObjectPlace, wanted: Mapping[str, Any]) -> Object:
    kept = parsed(dict(wanted))
    if place.plural in STATUS_OF_ITS_OWN:
        kept.pop("status", None)
    return kept


def _check_version(found: Object, wanted: Mapping[str, Any]) -> None:
    version = (wanted.get("metadata") or {}).get("resourceVersion")
    if version not in (None, found["metadata"]["resourceVersion"]):
        raise KubernetesConflict("the object has been modified: apply the changes to the latest")
