"""One schema change at a time for a keyspace, of all that this process makes.

Cassandra may give a table two ids when two hosts create it in the same moment. Processes keep out
of each other's way by the claim on the keyspace (ADR 0040).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from postroad.controller.spec.cluster import Cassandra

T = TypeVar("T")

KeyspacePlace = tuple[frozenset[str], int, str]
"""Contact points, port and keyspace."""


class SchemaLocks:
    """A lock for each keyspace, as long as work holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[KeyspacePlace, asyncio.Lock] = WeakValueDictionary()
        self._running: set[asyncio.Task[Any]] = set()

    async def alone(self, place: KeyspacePlace, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run one work at a time for a keyspace. Work whose caller has given up keeps the lock
        until Cassandra has answered."""

        async def locked() -> T:
            async with self._locks.setdefault(place, asyncio.Lock()):
                return await work()

        running = asyncio.create_task(locked())
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        running.add_done_callback(_seen)
        return await asyncio.shield(running)

    async def finish(self) -> None:
        """Return when no work is under way."""
        await asyncio.gather(*self._running, return_exceptions=True)


def place_of(cassandra: Cassandra) -> KeyspacePlace:
    """Return what two QueueClusters over one keyspace have in common, as far as their specs show
    it."""
    return frozenset(cassandra.contact_points), cassandra.port, cassandra.keyspace


def _seen(running: asyncio.Task[Any]) -> None:
    """Look at the error of work whose caller has given up, which asyncio would log."""
    if not running.cancelled():
        running.exception()
