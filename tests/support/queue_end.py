"""What a MailQueue is at the API server and at RabbitMQ, Cassandra and S3, without what differs
between two ways to the same end.
"""

from __future__ import annotations

import asyncio
from typing import Any

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.bootstrap.cluster import ClusterServers
from postroad.controller.kubernetes.api import CHILDREN, EVENT, MAIL_QUEUE, SECRET
from postroad.controller.reads import owner_of
from postroad.domain.queues.broker_users import QueueUser
from postroad.domain.queues.names import QueueName
from postroad.ports.kubernetes import Object
from support.servers import broker_users

End = dict[str, Any]

COUNTED = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
"""Fields of the metadata that count writes, or tell when they were."""

PASSING = (
    "deployment.kubernetes.io/revision",
    "postroad.dev/applied-hash",
    "postroad.dev/user-since",
)
"""Annotations with a count, an instant, or a hash of the owner's uid."""

ASSIGNED = ("clusterIP", "clusterIPs")
"""Of a Service's spec, what the API server draws."""


async def end_of(api: ApiServer, servers: ClusterServers, name: QueueName) -> End:
    """Return what there is of a MailQueue now."""
    queue = await api.get(MAIL_QUEUE, name.namespace, name.name)
    children = [
        each
        for kind in (*CHILDREN, SECRET)
        for each in await api.list(kind, name.namespace)
        if (owner := owner_of({"kind": kind.name, **each})) and owner.name == name.name
    ]
    events = await api.list(EVENT, name.namespace)
    uid = queue["metadata"]["uid"] if queue else None
    return {
        "queue": None if queue is None else _queue(queue),
        "children": sorted((_child(each) for each in children), key=str),
        "warnings": sorted(
            {e["reason"] for e in events if e["type"] == "Warning" and e["regarding"]["uid"] == uid}
        ),
        **await _at_servers(servers, name),
    }


def _queue(found: Object) -> Object:
    status = found.get("status") or {}
    configuration = {**(status.get("configuration") or {})}
    configuration.pop("effectiveFrom", None)
    return {
        **_declared(found),
        "is_current": status.get("observedGeneration") == found["metadata"]["generation"],
        "conditions": sorted(
            (each["type"], each["status"], each["reason"]) for each in status.get("conditions", [])
        ),
        "configuration": configuration,
        "history": [each["sequence"] for each in status.get("history", [])],
    }


def _child(found: Object) -> Object:
    if "data" in found and found.get("type"):  # a Secret: which user it has, and no password
        return {
            **_declared(found),
            "data": sorted(found["data"]),
            "user": found["data"]["username"],
        }
    return _declared(found)


def _declared(found: Object) -> Object:
    metadata = {key: each for key, each in found["metadata"].items() if key not in COUNTED}
    given = metadata.pop("annotations", None) or {}
    annotations = {key: each for key, each in given.items() if key not in PASSING}
    owners = [each["name"] for each in metadata.pop("ownerReferences", None) or []]
    spec = {key: each for key, each in (found.get("spec") or {}).items() if key not in ASSIGNED}
    rest = {key: each for key, each in found.items() if key not in ("metadata", "status", "spec")}
    return {**rest, **metadata, "annotations": annotations, "owners": owners, "spec": spec}


async def _at_servers(servers: ClusterServers, name: QueueName) -> End:
    history = await servers.history(name).load()
    users = await asyncio.to_thread(broker_users)
    parsed = [found for each in users if (found := QueueUser.parse(each))]
    return {
        "queues": await servers.broker(name).exists(),
        "bucket": await servers.blobs(name.bucket("postroad-")).exists(),
        "events": [(each.sequence, type(each).__name__) for each in history.events],
        "users": sorted(each.suffix for each in parsed if each.queue == name),
    }
