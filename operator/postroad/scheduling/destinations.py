"""What is known of destinations: the connections to them, and which of them failed or closed.

A destination without a record is unused. A record passes from active to idle to closed, or from a
failure to a rest to due, and is forgotten.
Source: SC-12, SC-22 to SC-24; AMB-16, AMB-17, AMB-19, AMB-24.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from itertools import count

from postroad.scheduling.jobs import Precedence
from postroad.scheduling.ranking import Ranking
from postroad.scheduling.rules import SchedulerRules


class Standing(Enum):
    """The class of a destination. Source: SC-13."""

    ACTIVE = "a connection has jobs"
    IDLE = "a connection is open"
    RESTING = "it failed, and is not tried yet"
    DUE = "it failed, and its rest is over"
    CLOSED = "it had a connection not long ago"
    UNUSED = "nothing is known"


class ConnectionRecord:
    """One connection's record, with its jobs in the order in which it got them."""

    __slots__ = (
        "destination", "finished", "idle_since", "is_established", "is_retiring", "jobs", "number",
        "opened_at", "precedence", "taken", "turned_idle",
    )  # fmt: skip

    def __init__(self, number: int, destination: Destination, now: float) -> None:
        self.number = number
        self.destination = destination
        self.opened_at = now
        self.jobs: dict[int, None] = {}
        self.precedence = Precedence.BULK
        """That of the job that it was opened for, or that ended its idleness."""
        self.taken = 0
        self.finished = 0
        self.is_established = False
        self.is_retiring = False
        self.idle_since: float | None = None
        self.turned_idle = 0

    @property
    def is_broken(self) -> bool:
        """Whether it ended before it finished a job, so that the next one would too."""
        return self.taken > 0 and self.finished == 0


class Destination:
    """One destination's record."""

    __slots__ = (
        "active", "connections", "established", "failures", "idle", "is_resting", "last_connection",
        "name", "rests_until",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self.established = 0
        self.active: dict[tuple[Precedence, int], Ranking[ConnectionRecord]] = {}
        """Connections that take jobs and have some, newest first, by how many they have."""
        self.idle: OrderedDict[ConnectionRecord, None] = OrderedDict()
        """Those without a job, the one used last at the end."""
        self.failures = 0
        self.is_resting = False
        self.rests_until = 0.0
        self.last_connection = 0
        """The number of the newest connection that there ever was; 0 for none."""

    @property
    def standing(self) -> Standing:
        """The class of this destination. What happens to its open connections counts first, so
        that a rest ends none of them."""
        if self.active:
            return Standing.ACTIVE
        if self.idle:
            return Standing.IDLE
        if self.is_resting:
            return Standing.RESTING
        if self.failures:
            return Standing.DUE
        return Standing.CLOSED if self.last_connection else Standing.UNUSED

    @property
    def last_idle(self) -> ConnectionRecord | None:
        """The idle connection that was used last."""
        return next(reversed(self.idle), None)

    def newest_active(self, precedence: Precedence, below: int | None) -> ConnectionRecord | None:
        """Return the newest active connection that serves this precedence, of those with fewer
        jobs than `below`. Source: AMB-26."""
        found = [
            newest
            for (served, length), ranking in self.active.items()
            if served >= precedence and (below is None or length < below)
            if (newest := ranking.first()) is not None
        ]
        return max(found, key=lambda each: each.number, default=None)


def _length_changed(connection: ConnectionRecord, before: int) -> None:
    """Keep `active` true after a connection got a job, finished one, or retired."""
    active, old = connection.destination.active, (connection.precedence, before)
    if old in active:
        active[old].discard(connection)
        if not active[old]:
            del active[old]
    if connection.jobs and not connection.is_retiring:
        new = (connection.precedence, len(connection.jobs))
        active.setdefault(new, Ranking()).put(connection, (-connection.number,))


@dataclass(frozen=True, slots=True)
class DestinationView:
    """How many connections a destination has, and until when it rests; None: it does not."""

    connections: int
    rests_until: float | None


class Destinations:
    """All destinations that are known, and all connections."""

    def __init__(self, rules: SchedulerRules) -> None:
        self._rules = rules
        self._records: dict[str, Destination] = {}
        self.connections: dict[int, ConnectionRecord] = {}
        self._idle: OrderedDict[ConnectionRecord, None] = OrderedDict()
        self._numbers = count(1)
        self._connection_moments: Ranking[ConnectionRecord] = Ranking()
        self._record_moments: Ranking[Destination] = Ranking()
        self._order = count()

    @property
    def free(self) -> int:
        """How many more connections could have jobs: those that are not open, and the idle ones,
        which can be used or closed. Source: AMB-16."""
        return self._rules.connections - len(self.connections) + len(self._idle)

    @property
    def is_full(self) -> bool:
        """Whether a further connection needs the place of an idle one."""
        return len(self.connections) >= self._rules.connections

    def find(self, name: str) -> Destination | None:
        """Return the record of a destination; an unused one may have none."""
        return self._records.get(name)

    def look_at(self, name: str) -> DestinationView:
        """Return what is known of a destination."""
        found = self._records.get(name)
        if found is None:
            return DestinationView(0, None)
        return DestinationView(found.connections, found.rests_until if found.is_resting else None)

    def has_room(self, name: str) -> bool:
        """Return whether one more connection may be opened to a destination.

        Until one of its connections is established a destination has one, and then never more
        than as many again: a dead one costs one connection. Source: SC-20; AMB-24.
        """
        found = self._records.get(name)
        if found is None:
            return True
        most = min(self._rules.per_destination, max(1, 2 * found.established))
        return not found.is_resting and found.connections < most

    def is_open(self, name: str) -> bool:
        """Return whether a job that may use a connection of its own finds one here."""
        found = self._records.get(name)
        return found is None or bool(found.idle) or self.has_room(name)

    def open(self, name: str, now: float) -> ConnectionRecord:
        """Open a connection; a job comes with it."""
        destination = self._known(name)
        connection = ConnectionRecord(next(self._numbers), destination, now)
        self.connections[connection.number] = connection
        destination.connections += 1
        destination.last_connection = connection.number
        self._record_moments.discard(destination)
        return connection

    def assign(self, connection: ConnectionRecord, job: int, precedence: Precedence) -> None:
        """Add a job to a connection's queue."""
        before = len(connection.jobs)
        if not before:
            connection.precedence = precedence
        connection.jobs[job] = None
        connection.taken += 1
        connection.is_retiring |= connection.taken >= self._rules.jobs_per_connection
        _length_changed(connection, before)
        if not before:
            self._leave_idle(connection)
            self._set_moment(connection)

    def establish(self, connection: ConnectionRecord) -> None:
        """Note that the destination has answered on this connection."""
        if not connection.is_established:
            connection.is_established = True
            connection.destination.established += 1

    def finish(self, connection: ConnectionRecord, job: int, now: float) -> None:
        """Take a finished job off a connection; its destination works."""
        connection.finished += 1
        self.establish(connection)
        connection.destination.failures = 0
        self._take_off(connection, job, now)

    def give_back(self, connection: ConnectionRecord, job: int, now: float) -> None:
        """Take a job off a connection that transmitted nothing of it, as if it had never had it:
        that says nothing about its destination."""
        connection.taken -= 1
        self._take_off(connection, job, now)

    def _take_off(self, connection: ConnectionRecord, job: int, now: float) -> None:
        before = len(connection.jobs)
        del connection.jobs[job]
        _length_changed(connection, before)
        if not connection.jobs and not connection.is_retiring:
            connection.idle_since, connection.turned_idle = now, next(self._order)
            connection.destination.idle[connection] = self._idle[connection] = None
        self._set_moment(connection)

    def close(self, connection: ConnectionRecord, now: float) -> None:
        """Forget a connection that is closed or to be closed."""
        destination, before = connection.destination, len(connection.jobs)
        del self.connections[connection.number]
        self._leave_idle(connection)
        self._connection_moments.discard(connection)
        connection.jobs.clear()
        _length_changed(connection, before)
        destination.connections -= 1
        destination.established -= connection.is_established
        if not destination.connections and destination not in self._record_moments:
            is_closed = destination.standing is Standing.CLOSED
            kept = self._rules.remember_closed if is_closed else self._rules.remember_broken
            self._forget_at(destination, now + kept)

    def fail(self, name: str, now: float) -> float | None:
        """Let a destination rest after a failure; return until when, or None where it rests
        already: connections that end together are one failure."""
        destination = self._known(name)
        if destination.is_resting:
            return None
        destination.failures += 1
        rest = self._rules.first_rest * destination.failures**2
        until = now + min(rest, self._rules.longest_rest)
        self.rest(name, until)
        return until

    def rest(self, name: str, until: float) -> None:
        """Open no connection to a destination before this instant. What fails elsewhere adds no
        failure here, since each of many processes lets all others hear of its own. Source: SC-12,
        SC-23."""
        destination = self._known(name)
        destination.failures = max(destination.failures, 1)
        destination.is_resting = True
        destination.rests_until = max(until, destination.rests_until)
        self._forget_at(destination, destination.rests_until)

    def forgive(self, name: str) -> None:
        """End the rest of a destination, and forget its failures."""
        destination = self._records.get(name)
        if destination is None or not (destination.is_resting or destination.failures):
            return
        destination.failures, destination.is_resting = 0, False
        destination.rests_until = 0.0
        self._record_moments.discard(destination)
        if not destination.connections:
            del self._records[name]

    def least_used(self) -> ConnectionRecord | None:
        """Return the idle connection that was used least recently. Source: AMB-17."""
        return next(iter(self._idle), None)

    def next_moment(self) -> float | None:
        """Return when `pass_moments` has something to do."""
        ranks = (self._connection_moments.first_rank(), self._record_moments.first_rank())
        return min((rank[0] for rank in ranks if rank is not None), default=None)

    def aged(self, now: float) -> list[ConnectionRecord]:
        """Retire connections that are too old, which get no job any more, and return them; those
        without a job are to be closed. Source: SC-22; AMB-17."""
        over = []
        while (rank := self._connection_moments.first_rank()) is not None and rank[0] <= now:
            connection = self._connection_moments.first()
            assert connection is not None
            self._connection_moments.discard(connection)
            over.append(connection)
            if connection.jobs:
                connection.is_retiring = True
                _length_changed(connection, len(connection.jobs))
        return over

    def rested(self, now: float) -> list[str]:
        """End the rests that are over, and forget old records; return the destinations."""
        changed = []
        while (rank := self._record_moments.first_rank()) is not None and rank[0] <= now:
            destination = self._record_moments.first()
            assert destination is not None
            self._record_moments.discard(destination)
            changed.append(destination.name)
            if destination.is_resting:
                destination.is_resting = False
                if not destination.connections and self._rules.remember_broken > 0:
                    self._forget_at(destination, now + self._rules.remember_broken)
                    continue
            if not destination.connections:
                del self._records[destination.name]
        return changed

    def _known(self, name: str) -> Destination:
        if name not in self._records:
            self._records[name] = Destination(name)
        return self._records[name]

    def _leave_idle(self, connection: ConnectionRecord) -> None:
        self._idle.pop(connection, None)
        connection.destination.idle.pop(connection, None)
        connection.idle_since = None

    def _set_moment(self, connection: ConnectionRecord) -> None:
        if connection.is_retiring:
            return
        moment = connection.opened_at + self._rules.age
        if connection.idle_since is not None:
            moment = min(moment, connection.idle_since + self._rules.idle)
        self._connection_moments.put(connection, (moment, connection.number))

    def _forget_at(self, destination: Destination, moment: float) -> None:
        self._record_moments.put(destination, (moment, next(self._order)))
