"""Namespaces of an API server for one test each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import MAIL_QUEUE, NAMESPACE, QUEUE_CLUSTER

NO_FINALIZERS = {"metadata": {"finalizers": None}}


@asynccontextmanager
async def new_namespace(api: ApiServer) -> AsyncIterator[str]:
    """Make a namespace, yield its name, and remove it."""
    name = f"test-{uuid4().hex[:8]}"
    created = await api.create(
        NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    yield name
    for kind in (MAIL_QUEUE, QUEUE_CLUSTER):
        for left in await api.list(kind, name):  # the operator that would let them go has ended
            await api.patch(kind, name, left["metadata"]["name"], NO_FINALIZERS)
    await api.delete(NAMESPACE, created)
