"""Follows what happens to the kinds that reconciles depend on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from postroad.controller.kubernetes.actions import log_unexpected
from postroad.controller.kubernetes.api import MANAGED_BY
from postroad.controller.reads.cached_api import WATCHED
from postroad.controller.reads.indexes import OWN
from postroad.controller.run.causes import Causes
from postroad.ports.kubernetes import COMPLETE, DELETED, LISTED, Kind, Kubernetes


async def follow(
    api: Kubernetes, causes: Causes, namespaces: Sequence[str], indexed: asyncio.Event
) -> None:
    """Follow all kinds, in these namespaces or in all, until cancelled; set `indexed` once the
    indexes have all objects that there were at the begin."""
    left = {(kind, each) for kind in WATCHED for each in namespaces or (None,)}

    async def follow_kind(kind: Kind, namespace: str | None) -> None:
        labels = "" if kind in OWN else f"{MANAGED_BY}=postroad"
        async for happened, body in api.watch(kind, namespace, labels):
            if happened == COMPLETE:
                left.discard((kind, namespace))
                if not left:
                    indexed.set()
                continue
            gone, routine = happened == DELETED, happened == LISTED
            try:
                causes.on_event(kind, body, gone=gone, routine=routine)
            except Exception:  # of one object, which must not end the watch of all others
                log_unexpected("an event was not handled", kind=kind.name)

    async with asyncio.TaskGroup() as group:
        for kind, namespace in [*left]:
            group.create_task(follow_kind(kind, namespace))
