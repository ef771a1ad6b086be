"""Members in the order of ranks that change: each operation costs the logarithm of their number."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

Member = TypeVar("Member")
Rank = tuple[float, ...]


class Ranking(Generic[Member]):
    """Members by rank, the least first; those of equal ranks in no order that means anything.

    >>> hosts = Ranking[str]()
    >>> hosts.put("a", (2,)); hosts.put("b", (1,)); hosts.put("b", (3,))
    >>> hosts.first()
    'a'
    """

    __slots__ = ("_heap", "_pushes", "_ranks")

    def __init__(self) -> None:
        # What is pushed has a number, because an entry that has become wrong may have the rank of
        # another member, and members cannot be compared.
        self._heap: list[tuple[Rank, int, Member]] = []
        self._pushes = 0
        self._ranks: dict[Member, Rank] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, member: Member) -> bool:
        return member in self._ranks

    def put(self, member: Member, rank: Rank) -> None:
        """Add a member, or give it another rank."""
        if self._ranks.get(member) == rank:
            return
        self._ranks[member] = rank
        # Each entry of the heap that has become wrong was paid for when it was pushed.
        if len(self._heap) > 2 * len(self._ranks) + 8:
            self._heap = [(each, -n, owner) for n, (owner, each) in enumerate(self._ranks.items())]
            heapq.heapify(self._heap)
        else:
            self._pushes += 1
            heapq.heappush(self._heap, (rank, self._pushes, member))

    def discard(self, member: Member) -> None:
        """Take a member out, if it is there."""
        self._ranks.pop(member, None)
        if not self._ranks:
            self._heap.clear()

    def first(self) -> Member | None:
        """Return the member with the least rank; it stays."""
        heap = self._heap
        while heap:
            rank, _, member = heap[0]
            if self._ranks.get(member) == rank:
                return member
            heapq.heappop(heap)
        return None

    def first_rank(self) -> Rank | None:
        """Return the least rank."""
        member = self.first()
        return None if member is None else self._ranks[member]

    def take_due(self, now: float) -> Member | None:
        """Take out the first member and return it, if its rank begins with `now` or less."""
        if not self._heap or self._heap[0][0][0] > now:
            return None  # of most calls: an entry that has become wrong is no later than the first
        rank = self.first_rank()
        if rank is None or rank[0] > now:
            return None
        member = self._heap[0][2]
        self.discard(member)
        return member

    def members(self) -> list[Member]:
        """Return all members, in no order that means anything."""
        return list(self._ranks)
