"""Remembers next hops that offer what does not work with them, so that it is not tried again with
each mail."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import timedelta

from postroad.domain.smtp.next_hops import NextHop

KEPT = timedelta(hours=1)

MOST_REMEMBERED = 10_000


class RememberedHops:
    """Next hops with which something failed lately. Needs a running event loop."""

    def __init__(self) -> None:
        self._until: OrderedDict[NextHop, float] = OrderedDict()
        """The loop's time until which each is remembered; soonest first. By all that is required of
        a hop: what fails for mail that wants a newer TLS may work for other mail."""

    def has(self, hop: NextHop) -> bool:
        """Whether a next hop is remembered."""
        return self._until.get(hop, 0.0) > asyncio.get_running_loop().time()

    def forget(self, hop: NextHop) -> None:
        """Remember a next hop no more."""
        self._until.pop(hop, None)

    def add(self, hop: NextHop) -> None:
        """Remember a next hop."""
        self._until[hop] = asyncio.get_running_loop().time() + KEPT.total_seconds()
        self._until.move_to_end(hop)
        if len(self._until) > MOST_REMEMBERED:
            self._until.popitem(last=False)
