"""Memory of what a console was asked to do, by namespace: tenants neither fill each other's room,
nor push out what the others look for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar
from uuid import UUID

from postroad.problems import Problem

MAX_KEPT = 1000
"""Operations, or tasks, of a namespace; the oldest that has ended is forgotten first."""

T = TypeVar("T")


class RememberedWork(Generic[T]):
    """Things by namespace and id. One that has not ended is never forgotten."""

    def __init__(self, has_ended: Callable[[T], bool]) -> None:
        self._has_ended = has_ended
        self._of: dict[str, dict[UUID, T]] = {}

    def make_room(self, namespace: str) -> None:
        """Forget the oldest that has ended, where there are as many as are kept. Raises: Problem
        where none has."""
        kept = self._of.get(namespace, {})
        if len(kept) < MAX_KEPT:
            return
        ended = next((key for key, each in kept.items() if self._has_ended(each)), None)
        if ended is None:
            raise Problem(
                429, f"{MAX_KEPT} of this namespace are under way: wait for the end of one"
            )
        del kept[ended]

    def add(self, namespace: str, key: UUID, made: T) -> None:
        self._of.setdefault(namespace, {})[key] = made

    def find(self, namespace: str, key: UUID) -> T | None:
        return self._of.get(namespace, {}).get(key)

    def of(self, namespace: str) -> Iterator[T]:
        """Yield those of a namespace, the last ones first."""
        return reversed(self._of.get(namespace, {}).values())
