"""Namespaces of an API server for one test each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import uuid4

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import MAIL_QUEUE, NAMESPACE, QUEUE_CLUSTER

T = TypeVar("T")

NO_FINALIZERS = {"metadata": {"finalizers": None}}

SIDE_BY_SIDE = 4
"""Scenes at once; each has an operator, which has to renew its Lease in time on a busy machine."""


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


async def side_by_side(
    api: ApiServer, cases: Iterable[T], scene: Callable[[ApiServer, str, T], Awaitable[None]]
) -> None:
    """Play a scene for each case in a namespace of its own, a few at once: most of it waits, as for
    the Lease of an operator that is gone. Raises: what failed, each with its case."""
    free = asyncio.Semaphore(SIDE_BY_SIDE)

    async def play(case: T) -> None:
        async with free, new_namespace(api) as namespace:
            try:
                await scene(api, namespace, case)
            except Exception as error:
                error.add_note(f"case {case}")
                raise

    ended = await asyncio.gather(*map(play, cases), return_exceptions=True)
    failed = [each for each in ended if isinstance(each, Exception)]
    if failed:
        raise ExceptionGroup("cases that failed", failed)
