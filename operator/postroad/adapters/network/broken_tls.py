"""Remembers next hops whose TLS is broken, so that mail that may go in clear does so at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import timedelta

from postroad.domain.next_hops import NextHop

KEPT = timedelta(hours=1)

MOST_HOPS = 10_000


class BrokenTls:
    """Next hops that offer TLS with which no connection could be made. It is asked for hops with
    opportunistic TLS alone: no other mail ever goes in clear. Needs a running event loop."""

    def __init__(self) -> None:
        self._until: OrderedDict[tuple[str, int], float] = OrderedDict()
        """Host and port → the loop's time until which they are remembered; soonest first."""

    def has(self, hop: NextHop) -> bool:
        """Whether TLS to a next hop failed lately, while a connection in clear did not."""
        return self._until.get((hop.host, hop.port), 0.0) > asyncio.get_running_loop().time()

    def add(self, hop: NextHop) -> None:
        """Remember a next hop."""
        place = hop.host, hop.port
        self._until[place] = asyncio.get_running_loop().time() + KEPT.total_seconds()
        self._until.move_to_end(place)
        if len(self._until) > MOST_HOPS:
            self._until.popitem(last=False)
