"""Remembers next hops whose TLS is broken, so that mail that may go in clear does so at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import timedelta

from postroad.domain.next_hops import NextHop

KEPT = timedelta(hours=1)

MOST_REMEMBERED = 10_000


class BrokenTls:
    """Next hops that offer TLS with which no connection could be made. It is asked for hops with
    opportunistic TLS alone: no other mail ever goes in clear. Needs a running event loop."""

    def __init__(self) -> None:
        self._until: OrderedDict[NextHop, float] = OrderedDict()
        """The loop's time until which each is remembered; soonest first. By all that is required of
        a hop: what fails for mail that wants a newer TLS may work for other mail."""

    def has(self, hop: NextHop) -> bool:
        """Whether TLS to a next hop failed lately, while a connection in clear did not."""
        return self._until.get(hop, 0.0) > asyncio.get_running_loop().time()

    def add(self, hop: NextHop) -> None:
        """Remember a next hop."""
        self._until[hop] = asyncio.get_running_loop().time() + KEPT.total_seconds()
        self._until.move_to_end(hop)
        if len(self._until) > MOST_REMEMBERED:
            self._until.popitem(last=False)
