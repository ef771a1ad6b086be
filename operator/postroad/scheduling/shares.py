"""How much of the system a mail may use, and which mail gets more of it next.

With s as `scale_max_concurrency` and N workers, k mails without end get s*N/(1+s*k) workers each,
and 1/(1+s*k) of them stays free for the next mail. Workers are connections or routers.
Source: SC-4 to SC-9, SC-25; AMB-14, AMB-15.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from postroad.scheduling.jobs import Precedence
from postroad.scheduling.ranking import Rank, Ranking
from postroad.scheduling.rules import Order, ShareLimits


def may_grow(working: int, limits: ShareLimits, free: int) -> bool:
    """Return whether a mail with this many jobs at work may use one more of the free workers.

    >>> may_grow(90, ShareLimits(5, 10), free=10), may_grow(91, ShareLimits(5, 10), free=9)
    (True, False)
    """
    if working < limits.max_message_concurrency:
        return True
    return working < limits.scale_max_concurrency * free


class Share:
    """What one mail has at work: its jobs on connections, those that ride free too, or those in
    routers. `number` counts mails by arrival, `turn` when a job of it last began, or its arrival,
    so that of mails with equally many the one comes first that has waited longest."""

    __slots__ = ("number", "precedence", "turn", "working")

    def __init__(self, number: int, precedence: Precedence) -> None:
        self.number = self.turn = number
        self.precedence = precedence
        self.working = 0

    def rank(self, order: Order) -> Rank:
        """The share's rank among those of the same precedence."""
        if order is Order.AS_LISTED:
            return (self.number,)
        return (self.working, self.turn)


class Contender(Protocol):
    """A share, or what stands for the first of several."""

    @property
    def working(self) -> int:
        """How many jobs the mail has at work."""
        ...

    def rank(self, order: Order) -> Rank:
        """The rank in a contest."""
        ...


C = TypeVar("C", bound=Contender)


class Contest(Generic[C]):
    """The mails of one precedence that could use a worker if there is one."""

    __slots__ = ("_limits", "_order", "_ranking")

    def __init__(self, order: Order, limits: ShareLimits) -> None:
        self._order, self._limits = order, limits
        self._ranking: Ranking[C] = Ranking()

    def enter(self, contender: C) -> None:
        """Add a contender, or note that its rank has changed."""
        self._ranking.put(contender, contender.rank(self._order))

    def leave(self, contender: C) -> None:
        """Take a contender out, if it is there."""
        self._ranking.discard(contender)

    def best(self, free: int) -> C | None:
        """Return the first contender that may use one of the free workers.

        Where the mail with the fewest jobs at work may not grow, no other may.
        """
        first = self._ranking.first()
        if first is None or self._may_grow(first, free):
            return first
        return None if self._order is Order.FEWEST_FIRST else self._beyond(free)

    def _beyond(self, free: int) -> C | None:
        passed = []
        while (first := self._ranking.first()) is not None and not self._may_grow(first, free):
            passed.append(first)
            self._ranking.discard(first)
        for each in passed:
            self.enter(each)
        return first

    def _may_grow(self, contender: C, free: int) -> bool:
        return may_grow(contender.working, self._limits, free)
