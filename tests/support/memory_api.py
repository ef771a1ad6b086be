"""Kubernetes objects in memory, for tests of decisions that need no API server.

It keeps objects, statuses and Events as they are given: one version, no defaults, no admission.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.controller.api import Kind
from postroad.controller.api_server import ApiServer, Object


class MemoryApi(ApiServer):
    """The part of an API server that reconciles of QueueClusters need."""

    def __init__(self, *objects: Object) -> None:
        self.objects: dict[tuple[str, str | None, str], Object] = {}
        self.add(*objects)
        self.events: list[Object] = []
        self.asked: list[tuple[str, str | None]] = []
        """Kind and name, or None for a list, of each object that was read."""

    def add(self, *objects: Object) -> None:
        """Store new objects."""
        self.objects |= {_key(each): stored(each) for each in objects}

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object at once, whatever its finalizers are."""
        del self.objects[kind, namespace, name]

    def change(self, name: str, **spec: Any) -> None:
        """Change fields of the spec of a MailQueue, as a new generation."""
        for key, each in self.objects.items():
            if key[0] == "MailQueue" and key[2] == name:
                each["spec"] |= spec
                each["metadata"]["generation"] += 1

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        self.asked.append((kind.name, name))
        return self.objects.get((kind.name, namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Sequence[Object]:
        self.asked.append((kind.name, None))
        return [
            each
            for (name, place, _), each in self.objects.items()
            if name == kind.name and namespace in (None, place)
        ]

    async def patch(
        self, kind: Kind, namespace: str, name: str, change: Mapping[str, Any]
    ) -> Object | None:
        found = self.objects[kind.name, namespace, name]
        found["metadata"] |= change["metadata"]
        return found

    async def replace_status(self, kind: Kind, changed: Object) -> Object | None:
        self.objects[_key(changed)] = changed
        return changed

    async def post_event(self, event: Object) -> None:
        self.events.append(event)


def stored(wanted: Object) -> Object:
    """Return an object as an API server stores it."""
    metadata = {"generation": 1, "resourceVersion": "1"} | wanted["metadata"]
    return wanted | {"metadata": {"uid": "/".join(map(str, _key(wanted)))} | metadata}


def _key(found: Object) -> tuple[str, str | None, str]:
    metadata = found["metadata"]
    return found["kind"], metadata.get("namespace"), metadata["name"]
