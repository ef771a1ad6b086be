"""Reads of objects that no watch brings, kept so long that reading them again costs a bounded rate
of requests, however many namespaces have them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from postroad.controller.kubernetes.api import Key
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kind, Kubernetes, Object

READS_A_SECOND = 3.0
"""Objects that are read again; many are then kept for longer."""

LEAST_AGE = timedelta(seconds=4)
"""For so long an object is kept at least: less than the interval at which the Secrets of a
QueueCluster are compared. A missing one is not kept."""

SAVED = timedelta(minutes=1)
"""Reads that were not needed for so long may come later, at once: the reconciles of a QueueCluster,
which read the most, are a minute apart."""


class Reads(Protocol):
    """The part of `Kubernetes` that reads one object."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """Return an object, or None when there is none. Raises: KubernetesError."""
        ...


class RememberedReads:
    """Reads of Secrets, ConfigMaps with authorities, and namespaces."""

    def __init__(self, api: Kubernetes, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._read: dict[Key, tuple[timedelta, Object]] = {}
        self._next = timedelta()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """Return an object, or None when there is none. Raises: KubernetesError."""
        key, now = Key(kind.name, namespace or "", name), self._clock.elapsed()
        if key in self._read:
            at, kept = self._read[key]
            if now - at < self._age or not self._may_read_again(now):
                return kept
        found = await self._api.get(kind, namespace, name)
        self._read.pop(key, None)
        if found is not None:
            self._read[key] = now, found
        return found

    @property
    def _age(self) -> timedelta:
        """The age at which objects are read again. Of many it is more than it takes to read all, so
        that each is before the first one is again."""
        return max(LEAST_AGE, timedelta(seconds=1.5 * len(self._read) / READS_A_SECOND))

    def _may_read_again(self, now: timedelta) -> bool:
        if self._next > now:
            return False
        self._next = max(self._next, now - SAVED) + timedelta(seconds=1 / READS_A_SECOND)
        return True

    def forget_old(self) -> None:
        """Forget the objects that no reconcile asks for any more."""
        now, age = self._clock.elapsed(), self._age
        self._read = {key: each for key, each in self._read.items() if now - each[0] < 2 * age}
