"""Which jobs a worker puts off so that it sees others: those of sites that are in trouble, which
would fill its window of mails in hand.

A site is in trouble when all its destinations failed or take long. While the window is nearly full,
all such sites share an eighth of it. Source: AMB-27; ADR 0070.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from postroad.worker.jobs.job_table import JobTable
from postroad.worker.jobs.open_jobs import OpenJob
from postroad.worker.routing import DeliveryRoute


def is_crowded(in_hand: int, window: int) -> bool:
    """Return whether so many mails in hand leave few places to others."""
    return 4 * in_hand >= 3 * window


@dataclass(slots=True)
class RoomForTrouble:
    """What sites in trouble may have in hand: so many jobs `each`, and so many more that wait, of
    all these sites, are `left`."""

    each: int
    left: int

    def takes(self, jobs_before: int) -> bool:
        """Take a job that waits, of a site with so many jobs before it; return whether there is
        room for it."""
        has_room = jobs_before < self.each and self.left > 0
        self.left -= has_room
        return has_room


def room_for_trouble(window: int, sites: int) -> RoomForTrouble:
    """Return an eighth of the window, shared evenly by so many sites.

    >>> room_for_trouble(900, sites=10).each, room_for_trouble(900, sites=1000).each
    (11, 1)
    """
    room = max(1, window // 8)
    return RoomForTrouble(max(1, room // sites), room)


class Crowding:
    """The jobs of sites in trouble. `window`: how many mails may be in hand; None: all of them have
    one next hop. `is_troubled` returns whether a destination failed or takes long."""

    def __init__(
        self, window: int | None, jobs: JobTable, is_troubled: Callable[[str], bool]
    ) -> None:
        self._window, self._jobs, self._is_troubled = window, jobs, is_troubled
        self._room: RoomForTrouble | None = None

    def surplus(self, in_hand: int) -> list[OpenJob]:
        """Return the jobs that wait and have no room, while so many mails are in hand: the last
        ones. What is found out holds until this is called again."""
        self._room = None
        if self._window is None or not is_crowded(in_hand, self._window):
            return []
        troubled = [each for each in self._jobs.by_site() if self._is_in_trouble(each[0].route)]
        if not troubled:
            return []
        room = self._room = room_for_trouble(self._window, len(troubled))
        return [
            job
            for jobs in troubled
            for before, job in enumerate(jobs)
            if job.connection is None and not room.takes(before)
        ]

    def has_room(self, route: DeliveryRoute) -> bool:
        """Return whether one more job may wait; a job that may not is put off at once."""
        if self._room is None or not self._is_in_trouble(route):
            return True
        return self._room.takes(self._jobs.count_at(route.name))

    def _is_in_trouble(self, route: DeliveryRoute) -> bool:
        return all(map(self._is_troubled, route.hops))
