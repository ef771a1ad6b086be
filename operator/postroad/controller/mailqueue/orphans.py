"""The list of orphans: what forced deletions left behind, in a ConfigMap beside the operator.

It outlives the MailQueue, its namespace and its QueueCluster, whose servers may be gone. `postroad
erase` finishes an entry and takes it off. A MailQueue that is made anew under the name, on the same
QueueCluster, takes over what was left, and its entry with it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from postroad.controller.kubernetes.api import CONFIG_MAP, log_action
from postroad.controller.mailqueue.deletion_progress import DeletionProgress
from postroad.controller.status.conditions import timestamp
from postroad.distributed.maintenance.erasure import Part
from postroad.errors import KubernetesConflict, KubernetesRefused
from postroad.ports.kubernetes import Kubernetes

NAME = "postroad-orphans"


@dataclass(frozen=True, slots=True)
class OrphanRecord:
    """Parts that a deletion left behind of the queue `NAMESPACE.NAME`. `left`: each part with the
    reason. `others`: those of them that another claimant has."""

    queue: str
    cluster: str
    bucket: str
    left: Mapping[str, str]
    at: str
    others: Collection[str] = ()

    @classmethod
    def of(
        cls, found: Mapping[str, Any], progress: DeletionProgress, bucket: str, now: datetime
    ) -> OrphanRecord:
        """Return what is left of a MailQueue's queue, as it ends."""
        queue, cluster = _queue_and_cluster(found)
        return cls(
            queue=queue,
            cluster=cluster,
            bucket=bucket,
            left=progress.left(),
            at=timestamp(now),
            others=[part.value for part, _ in progress.left_behind],
        )

    def entry(self, namespace: str) -> dict[str, Any]:
        """Return the entry of the list in a namespace, with the command that finishes it, in an
        environment with the servers' settings. The command names none of another claimant's parts,
        and there is none where nothing else is left."""
        entry, parts = asdict(self), ""
        if self.others:
            own = [each for each in self.left if each not in (*self.others, Part.HISTORY)]
            if not own:
                return entry
            parts = "".join(f" --part {each}" for each in own)
        queue = f"--queue distributed://{self.queue} --confirm {self.queue}"
        return {**entry, "command": f"postroad erase {queue}{parts} --listed-in {namespace}"}


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
        """Write an entry. Durable, idempotent. Raises: KubernetesError; also where the list is
        full, beyond some thousand entries."""
        data = {orphan.queue: _text(orphan.entry(self._namespace))}
        if await self._api.get(CONFIG_MAP, self._namespace, NAME) is None:
            wanted = {
                "apiVersion": CONFIG_MAP.api_version,
                "kind": CONFIG_MAP.name,
                "metadata": {"name": NAME, "namespace": self._namespace},
                "data": data,
            }
            try:
                await self._api.create(CONFIG_MAP, wanted)
                return
            except KubernetesConflict:  # another deletion created it
                pass
        await self._patch(data)

    async def take_over(self, found: Mapping[str, Any]) -> None:
        """Remove the entry of a MailQueue's queue, which is made anew. That of another QueueCluster
        stays, for what is left on its servers, without the command, which goes by the name alone.
        Idempotent. Raises: KubernetesError."""
        queue, cluster = _queue_and_cluster(found)
        try:
            entries = await self._entries()
        except KubernetesRefused:
            return  # an operator without rights in its own namespace has no list
        if queue not in entries:
            return
        try:
            entry = dict(json.loads(entries[queue]))
        except (ValueError, TypeError):
            return  # edited by hand: nothing tells on which QueueCluster it was
        if entry.get("cluster") == cluster:
            await self._patch({queue: None})
            log_action("took over what a deletion had left behind", queue=queue)
        elif entry.pop("command", None):
            await self._patch({queue: _text(entry)})

    async def take_off(self, queue: str, erased: Collection[str]) -> Collection[str]:
        """Take parts that are erased off an entry, which goes with the last one; return the parts
        that it has then. Idempotent. Raises: KubernetesError."""
        entries = await self._entries()
        if queue not in entries:
            return ()
        entry = json.loads(entries[queue])
        left = {part: why for part, why in entry["left"].items() if part not in erased}
        await self._patch({queue: _text({**entry, "left": left}) if left else None})
        return left

    async def _entries(self) -> Mapping[str, str]:
        found = await self._api.get(CONFIG_MAP, self._namespace, NAME) or {}
        return found.get("data") or {}

    async def _patch(self, data: Mapping[str, str | None]) -> None:
        await self._api.patch(CONFIG_MAP, self._namespace, NAME, {"data": data})


def _queue_and_cluster(found: Mapping[str, Any]) -> tuple[str, str]:
    metadata, reference = found["metadata"], found["spec"].get("clusterRef") or {}
    place = reference.get("namespace") or metadata["namespace"]
    queue = f"{metadata['namespace']}.{metadata['name']}"
    return queue, f"{place}/{reference.get('name')}"


def _text(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, indent=2, ensure_ascii=False)
