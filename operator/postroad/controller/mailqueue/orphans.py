"""The list of orphans: what forced deletions left behind, in ConfigMaps beside the operator.

It outlives the MailQueue, its namespace and its QueueCluster, whose servers may be gone. `postroad
erase` finishes an entry and takes it off. A MailQueue that is made anew under the name takes over
what was left, and its entry with it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import count
from typing import Any

from postroad.controller.kubernetes.api import CONFIG_MAP, log_action
from postroad.controller.status.conditions import timestamp
from postroad.errors import KubernetesConflict, KubernetesRefused
from postroad.ports.kubernetes import Kubernetes

NAME = "postroad-orphans"
"""Of the first ConfigMap; those after a full one have a number behind it."""

MAX_BYTES = 900_000
"""Of the entries of one; the API server takes 1 MiB."""


@dataclass(frozen=True, slots=True)
class OrphanRecord:
    """Parts that a deletion left behind of the queue `NAMESPACE.NAME`. `left`: each part with the
    reason."""

    queue: str
    cluster: str
    bucket: str
    left: Mapping[str, str]
    at: str

    @classmethod
    def of(
        cls, found: Mapping[str, Any], left: Mapping[str, str], bucket: str, now: datetime
    ) -> OrphanRecord:
        """Return what is left of a MailQueue's queue, as it ends."""
        metadata, reference = found["metadata"], found["spec"].get("clusterRef") or {}
        place = reference.get("namespace") or metadata["namespace"]
        return cls(
            queue=f"{metadata['namespace']}.{metadata['name']}",
            cluster=f"{place}/{reference.get('name')}",
            bucket=bucket,
            left=left,
            at=timestamp(now),
        )

    def entry(self, namespace: str) -> dict[str, Any]:
        """Return the entry of the list in a namespace, with the command that finishes it, in an
        environment with the servers' settings."""
        queue = f"--queue distributed://{self.queue} --confirm {self.queue}"
        return {**asdict(self), "command": f"postroad erase {queue} --listed-in {namespace}"}


class OrphanList:
    """The list. `namespace` is the operator's own."""

    def __init__(self, api: Kubernetes, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    @property
    def place(self) -> str:
        """The list's kind, namespace and name."""
        return f"ConfigMap {self._namespace}/{NAME}"

    async def add(self, orphan: OrphanRecord) -> None:
        """Write an entry. Durable, idempotent. Raises: KubernetesError."""
        data = {orphan.queue: _text(orphan.entry(self._namespace))}
        full = 0
        async for name, entries in self._lists():
            if orphan.queue in entries or _size(entries) + _size(data) <= MAX_BYTES:
                await self._patch(name, data)
                return
            full += 1
        name = _name(full)
        wanted = {
            "apiVersion": CONFIG_MAP.api_version,
            "kind": CONFIG_MAP.name,
            "metadata": {"name": name, "namespace": self._namespace},
            "data": data,
        }
        try:
            await self._api.create(CONFIG_MAP, wanted)
        except KubernetesConflict:  # another deletion created it
            await self._patch(name, data)

    async def take_over(self, queue: str) -> None:
        """Remove the entry of a queue that is made anew. Idempotent. Raises: KubernetesError."""
        try:
            lists = [each async for each in self._lists()]
        except KubernetesRefused:
            return  # an operator without rights in its own namespace has no list
        for name, entries in lists:
            if queue in entries:
                await self._patch(name, {queue: None})
                log_action("took over what a deletion had left behind", queue=queue)

    async def take_off(self, queue: str, erased: Collection[str]) -> Collection[str]:
        """Take parts that are erased off an entry, which goes with the last one; return the parts
        that it has then. Idempotent. Raises: KubernetesError."""
        async for name, entries in self._lists():
            if queue in entries:
                entry = json.loads(entries[queue])
                left = {part: why for part, why in entry["left"].items() if part not in erased}
                await self._patch(name, {queue: _text({**entry, "left": left}) if left else None})
                return left
        return ()

    async def _lists(self) -> AsyncIterator[tuple[str, Mapping[str, str]]]:
        """Yield the ConfigMaps of the list, with their entries."""
        for number in count():
            found = await self._api.get(CONFIG_MAP, self._namespace, _name(number))
            if found is None:
                return
            yield _name(number), found.get("data") or {}

    async def _patch(self, name: str, data: Mapping[str, str | None]) -> None:
        await self._api.patch(CONFIG_MAP, self._namespace, name, {"data": data})


def _name(number: int) -> str:
    return f"{NAME}-{number + 1}" if number else NAME


def _size(entries: Mapping[str, str]) -> int:
    return sum(len(queue) + len(text.encode()) for queue, text in entries.items())


def _text(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, indent=2, ensure_ascii=False)
