"""A Kubernetes API server in memory, with versions, finalizers, owners and watches."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import count
from typing import Any

from postroad.controller.api_server import APPLY, ApiServer, Object
from postroad.errors import KubernetesConflict, KubernetesRefused

Place = tuple[str, str, str]
"""Plural name of the kind, namespace and name."""

PATH = re.compile(
    r"/apis?/(?:v1|[^/]+/[^/]+?)(?:/namespaces/([^/]+))?/([^/]+)(?:/([^/]+))?(/status)?"
)


class WatchedApi(ApiServer):
    """`fail(call)` may raise for the call of that number. `watched` gets what a watch would."""

    def __init__(self, fail: Callable[[int], None] = lambda call: None) -> None:
        self.objects: dict[Place, Object] = {}
        self.calls: list[str] = []
        self.fail = fail
        self.watched: asyncio.Queue[tuple[str, Place, Object]] = asyncio.Queue()
        self.pruned: set[str] = set()
        """Fields of a status that the CRDs lack."""

        self._versions = count(1)

    def at(self, plural: str, namespace: str, name: str) -> Object | None:
        """Return an object."""
        return self.objects.get((plural, namespace, name))

    async def _call(self, method: str, path: str, **options: Any) -> Object | None:
        self.calls.append(f"{method} {path}")
        await asyncio.sleep(0)
        self.fail(len(self.calls) - 1)
        matched = PATH.fullmatch(path)
        assert matched, path
        namespace, plural, name, status = matched.groups()
        body = deepcopy(options.get("body")) or {}
        if method == "GET" and name is None:
            return {"items": self._listed(plural, namespace, options.get("query") or {})}
        place = (plural, namespace or "", name or body["metadata"]["name"])
        found = self.objects.get(place)
        if method == "POST":
            if found is not None:
                raise KubernetesConflict(f"{place} exists")
            return self._stored(place, None, body)
        if found is None and options.get("content_type") != APPLY:
            if options.get("missing_ok"):
                return None
            raise KubernetesRefused(f"{method} {path}: 404")
        if method == "DELETE":
            assert found is not None
            self._delete(place, found)
        elif method != "GET":
            _check_version(found, body)
            given = body.get("status", {}).items()
            kept = {field: value for field, value in given if field not in self.pruned}
            wanted = {**(found or {}), "status": kept} if status else _merged(found, body)
            return self._stored(place, found, wanted)
        return deepcopy(found)

    def _listed(self, plural: str, namespace: str | None, query: Mapping[str, str]) -> list[Object]:
        labels = [each.split("=") for each in query.get("labelSelector", "").split(",") if each]
        return [
            deepcopy(each)
            for (kind, where, _), each in self.objects.items()
            if kind == plural
            and namespace in (None, where)
            and all(each["metadata"].get("labels", {}).get(key) == value for key, value in labels)
        ]

    def _stored(self, place: Place, found: Object | None, wanted: Object) -> Object:
        metadata = wanted["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._versions)}")
        metadata.setdefault("generation", 1)
        if found is not None and found.get("spec") != wanted.get("spec"):
            metadata["generation"] = found["metadata"]["generation"] + 1
        if place[0] == "deployments":  # as its controller does for one without replicas
            wanted["status"] = {"observedGeneration": metadata["generation"]}
        if found is None or _written(found) != _written(wanted):
            metadata["resourceVersion"] = str(next(self._versions))
            self.objects[place] = wanted
            self.watched.put_nowait(("MODIFIED" if found else "ADDED", place, deepcopy(wanted)))
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._remove(place)
        return deepcopy(wanted)

    def _delete(self, place: Place, found: Object) -> None:
        if not found["metadata"].get("finalizers"):
            self._remove(place)
        elif "deletionTimestamp" not in found["metadata"]:
            metadata = {**found["metadata"], "deletionTimestamp": "2026-01-01T10:00:00Z"}
            self._stored(place, found, {**found, "metadata": metadata})

    def _remove(self, place: Place) -> None:
        gone = self.objects.pop(place)
        self.watched.put_nowait(("DELETED", place, deepcopy(gone)))
        uid = gone["metadata"]["uid"]
        for other, each in list(self.objects.items()):
            owners = each["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == uid for owner in owners):
                self._remove(other)


def _written(found: Object) -> Object:
    """Return an object without what the API server itself counts."""
    counted = ("resourceVersion", "generation")
    metadata = {key: each for key, each in found["metadata"].items() if key not in counted}
    return {**found, "metadata": metadata}


def _check_version(found: Object | None, body: Object) -> None:
    wanted = body.get("metadata", {}).get("resourceVersion")
    if found is not None and wanted not in (None, found["metadata"]["resourceVersion"]):
        raise KubernetesConflict("the object has been modified")


def _merged(found: Any, change: Any) -> Any:
    if not isinstance(change, Mapping):
        return change
    merged = dict(found) if isinstance(found, Mapping) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
