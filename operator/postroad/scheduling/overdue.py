"""Connections whose next hops take long: so many of them count apart, so that those that make
headway have their places. Source: AMB-27; ADR 0074.
"""

from __future__ import annotations

import math

from postroad.scheduling.destination_records import ConnectionRecord
from postroad.scheduling.ranking import Ranking
from postroad.scheduling.rules import SchedulerRules
from postroad.scheduling.trust import Trust


class OverdueConnections:
    """The connections that are overdue, and which of them count apart: as many as there are places.

    At most half of the places are for destinations that are in trouble, so that what opens to new
    ones finds one beside them. An overdue connection without a place counts as all others do.
    """

    def __init__(self, rules: SchedulerRules) -> None:
        self._after = rules.overdue_after
        self._places = rules.overdue_places
        self._moments: Ranking[ConnectionRecord] = Ranking()
        """Of those that open, by when they are overdue."""
        self._lines: dict[bool, dict[ConnectionRecord, None]] = {False: {}, True: {}}
        """Those without a place, by whether their destination was in trouble, in their order."""
        self._apart: dict[ConnectionRecord, bool] = {}
        """Those with a place, and whether their destination was in trouble."""
        self._in_trouble = 0

    def __len__(self) -> int:
        """How many count apart."""
        return len(self._apart)

    def opens(self, connection: ConnectionRecord, now: float) -> float:
        """Note that a connection begins to open; return when it is overdue."""
        if not self._places:
            return math.inf
        self._moments.put(connection, (now + self._after, connection.number))
        return now + self._after

    def comes(self, connection: ConnectionRecord) -> None:
        """Note that a connection is overdue."""
        if self._places and connection not in self._apart:
            is_troubled = connection.destination.trust is Trust.TROUBLED
            self._lines[not is_troubled].pop(connection, None)
            self._lines[is_troubled][connection] = None

    def goes(self, connection: ConnectionRecord) -> bool:
        """Note that a connection is overdue no more; return whether it counted apart."""
        self._moments.discard(connection)
        for line in self._lines.values():
            line.pop(connection, None)
        is_troubled = self._apart.pop(connection, None)
        self._in_trouble -= bool(is_troubled)
        return is_troubled is not None

    def next_moment(self) -> float | None:
        """Return when `placed` has something to do."""
        if any(line and self._has_place(is_troubled=each) for each, line in self._lines.items()):
            return -math.inf
        rank = self._moments.first_rank()
        return None if rank is None else rank[0]

    def placed(self, now: float) -> list[ConnectionRecord]:
        """Note which openings are overdue by now, and give all places away; return the connections
        that count apart from now on."""
        while (connection := self._moments.take_due(now)) is not None:
            self.comes(connection)
        found = []
        for is_troubled, line in self._lines.items():
            while line and self._has_place(is_troubled=is_troubled):
                connection = next(iter(line))
                del line[connection]
                self._apart[connection] = is_troubled
                self._in_trouble += is_troubled
                found.append(connection)
        return found

    def _has_place(self, *, is_troubled: bool) -> bool:
        places = self._places
        return len(self) < places and not (is_troubled and 2 * self._in_trouble >= places)
