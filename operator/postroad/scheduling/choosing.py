"""Chooses the connection of a job: one decision, as the source has it.

For the first tier of which a destination works:

1. the newest active connection with a queue shorter than the backlog (SC-14);
2. where the job may not use a connection of its own, or none is free, a free ride (SC-15, SC-17);
3. the idle connection used last (SC-16), which counts as free;
4. a new connection to an unused destination at random, else to the one that closed longest ago,
   else to one whose rest is over, at random (SC-18, SC-19);
5. a further connection to a destination at random among those that have the fewest (SC-20);
6. a free ride.

Of active connections a job uses those alone that a job of its own precedence or of a lower one
opened, or took when it was idle (AMB-26).

A connection that is idle or new is used to a destination alone whose like may use one more
(AMB-27).

Without a tier that works the job is deferred until a backoff ends (SC-21).
Source: SC-10, SC-11, SC-13 to SC-21; AMB-17, AMB-18, AMB-23, AMB-26, AMB-27."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from postroad.domain.values.frozen import value
from postroad.scheduling.destination_records import (
    ACTIVE,
    BACKING_OFF,
    CLOSED,
    DUE,
    UNUSED,
    ConnectionRecord,
    Standing,
)
from postroad.scheduling.destinations import Destinations
from postroad.scheduling.events import Precedence
from postroad.scheduling.ranking import SchedulerRules

Pick = Callable[[int], int]
"""Chance: of a number above zero, one of 0 up to and without that number."""


@value
class Take:
    """The job goes to a connection that is open."""

    connection: ConnectionRecord


@value
class OpenTo:
    """The job goes to a new connection to this destination."""

    name: str


@value
class Wait:
    """The job waits for a place at a destination of this tier."""

    tier: int


@value
class NoneWorks:
    """Every destination backs off; the first backoff ends at `until`."""

    until: float


Choice = Take | OpenTo | Wait | NoneWorks


@dataclass(frozen=True, slots=True)
class Chooser:
    """The decision, with what it depends on."""

    destinations: Destinations
    rules: SchedulerRules
    pick: Pick

    def choose(
        self, tiers: Sequence[Sequence[str]], precedence: Precedence, *, may_grow: bool
    ) -> Choice:
        """Return what a job does whose site has these tiers; `may_grow` says whether its mail may
        use one more connection."""
        for number, names in enumerate(tiers):
            tier = Tier(self.destinations, names, precedence)
            if tier.works:
                return self._within(tier, may_grow) or Wait(number)
        found = [self.destinations.find(name) for names in tiers for name in names]
        return NoneWorks(min(each.backoff_until for each in found if each is not None))

    def _within(self, tier: Tier, may_grow: bool) -> Take | OpenTo | None:
        if (short := tier.newest_active(below=self.rules.backlog)) is not None:
            return Take(short)
        if not may_grow or self.destinations.free == 0:
            return self._free_ride(tier)
        if (idle := tier.last_idle()) is not None:
            return Take(idle)
        if unused := tier.with_room(UNUSED):
            return OpenTo(self._one_of(unused))
        if closed := tier.with_room(CLOSED):
            return OpenTo(min(closed, key=tier.last_connection))
        if due := tier.with_room(DUE):
            return OpenTo(self._one_of(due))
        if working := tier.with_room(ACTIVE):
            fewest = min(map(tier.connections, working))
            return OpenTo(self._one_of([n for n in working if tier.connections(n) == fewest]))
        return self._free_ride(tier)

    def _free_ride(self, tier: Tier) -> Take | None:
        newest, longest = tier.newest_active(), self.rules.longest_queue
        if newest is None:
            return None
        shorter = tier.newest_active(below=len(newest.jobs), longest=longest)
        chosen = shorter or tier.newest_active(longest=longest)
        return None if chosen is None else Take(chosen)

    def _one_of(self, names: Sequence[str]) -> str:
        return names[self.pick(len(names))]


class Tier:
    """The destinations of one preference, and what is known of them. Source: SC-13."""

    __slots__ = ("_destinations", "_known", "_names", "_precedence")

    def __init__(
        self, destinations: Destinations, names: Sequence[str], precedence: Precedence
    ) -> None:
        self._destinations, self._names, self._precedence = destinations, names, precedence
        self._known = [each for name in names if (each := destinations.find(name)) is not None]

    @property
    def works(self) -> bool:
        """True if a destination has a connection or may be tried."""
        are_new = len(self._known) < len(self._names)
        return are_new or any(each.standing is not BACKING_OFF for each in self._known)

    def newest_active(
        self, below: int | None = None, longest: int | None = None
    ) -> ConnectionRecord | None:
        """Return the newest active connection that the job may use, of those with fewer jobs than
        `below`, and than their queue may have where `longest` is usual."""
        newest: ConnectionRecord | None = None
        for each in self._known:
            if each.active and (found := each.newest_active(self._precedence, below, longest)):
                newest = found if newest is None or found.number > newest.number else newest
        return newest

    def last_idle(self) -> ConnectionRecord | None:
        last: ConnectionRecord | None = None
        for each in self._known:
            if (idle := each.last_idle) is not None and self._destinations.may_grow(each.trust):
                last = idle if last is None or idle.turned_idle > last.turned_idle else last
        return last

    def with_room(self, standing: Standing) -> list[str]:
        """Return the destinations of a class to which a connection may be opened."""
        return [
            name
            for name in self._names
            if self._standing(name) is standing
            if self._destinations.has_room(name)
            if self._destinations.may_grow(self._destinations.trust(name))
        ]

    def _standing(self, name: str) -> Standing:
        found = self._destinations.find(name)
        return UNUSED if found is None else found.standing

    def last_connection(self, name: str) -> int:
        """Return when the last connection to a destination was made, among all."""
        found = self._destinations.find(name)
        return 0 if found is None else found.last_connection

    def connections(self, name: str) -> int:
        """Return how many connections a destination has."""
        found = self._destinations.find(name)
        return 0 if found is None else found.connections
