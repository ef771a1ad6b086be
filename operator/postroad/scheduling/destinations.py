"""State of destinations: the connections to them, and which of them failed or closed.

A destination without a record is unused. A record passes from active to idle to closed, or from a
failure to a backoff to due, and is forgotten.
Source: SC-12, SC-22 to SC-24; AMB-16, AMB-17, AMB-19, AMB-24, AMB-27."""

import math
from collections import OrderedDict
from itertools import count

from postroad.scheduling.destination_records import (
    CLOSED,
    FAILING,
    NEW,
    PROVEN,
    BusyConnections,
    ConnectionRecord,
    Destination,
    DestinationView,
    Trust,
    length_changed,
)
from postroad.scheduling.events import Precedence
from postroad.scheduling.ranking import (
    LimitsOf,
    Member,
    Ranking,
    SchedulerRules,
    usual_limits,
)
from postroad.scheduling.waiting import OverdueConnections

MINUTE, TICK = 60.0, 1.0
"""Seconds; a tick is the longest time between two looks at what time alone changes."""


class Destinations:
    def __init__(self, rules: SchedulerRules) -> None:
        self._rules = rules
        self._records: dict[str, Destination] = {}
        self.connections: dict[int, ConnectionRecord] = {}
        self._idle: OrderedDict[ConnectionRecord, None] = OrderedDict()
        self._numbers = count(1)
        self._connection_moments: Ranking[ConnectionRecord] = Ranking()
        self._record_moments: Ranking[Destination] = Ranking()
        self._slow_moments: Ranking[ConnectionRecord] = Ranking()
        self._opening_moments: Ranking[Destination] | None = None
        """None: there is no limit of the rate at which connections are opened."""
        self._nothing_before = math.inf
        """An instant before which no moment has come."""
        self._busy = BusyConnections(rules)
        self._overdue = OverdueConnections(rules)
        self._order = count()
        self._limits_of: LimitsOf = usual_limits

    def limit(self, limits_of: LimitsOf) -> None:
        """Limit connections from now on. What is open beyond a limit stays until it is idle or too
        old."""
        self._limits_of = limits_of
        for each in self._records.values():
            self._set_limits(each)

    def _set_limits(self, destination: Destination) -> None:
        found = self._limits_of(destination.name)
        destination.max_connections = found.connections or self._rules.per_destination
        destination.max_jobs = found.jobs or self._rules.jobs_per_connection
        destination.opening_interval = MINUTE / found.per_minute if found.per_minute else 0.0
        if not destination.opening_interval:
            destination.is_paced = False
            if self._opening_moments is not None:
                self._opening_moments.discard(destination)

    @property
    def free(self) -> int:
        """Number of further connections that could have jobs: those that are not open, and the idle
        ones, which can be used or closed. When connections that counted apart are answered, more
        than all can be in use for a while. Source: AMB-16, AMB-27."""
        return max(0, self._rules.connections - self._counted + len(self._idle))

    @property
    def _counted(self) -> int:
        """Number of connections without those that count apart."""
        return len(self.connections) - len(self._overdue)

    @property
    def is_full(self) -> bool:
        """True if a further connection needs the place of an idle one."""
        return self._counted >= self._rules.connections

    def find(self, name: str) -> Destination | None:
        """Return the record of a destination; an unused one may have none."""
        return self._records.get(name)

    def look_at(self, name: str) -> DestinationView:
        found = self._records.get(name)
        if found is None:
            return DestinationView(0, None)
        return DestinationView(
            found.connections,
            found.backoff_until if found.is_backing_off else None,
            is_failing=found.trust is FAILING,
        )

    def has_room(self, name: str) -> bool:
        """Return whether one more connection may be opened to a destination. Until one of its
        connections is established a destination has one, and then never more than as many again: a
        dead one costs one connection. Source: SC-20; AMB-24."""
        found = self._records.get(name)
        if found is None:
            return True
        most = min(found.max_connections, max(1, 2 * found.established))
        return found.connections < most and not (found.is_backing_off or found.is_paced)

    def is_open(self, name: str) -> bool:
        """Return whether a job that may use a connection of its own finds one here."""
        found = self._records.get(name)
        return found is None or bool(found.idle) or self.has_room(name)

    def trust(self, name: str) -> Trust:
        found = self._records.get(name)
        return NEW if found is None else found.trust

    def may_grow(self, trust: Trust) -> bool:
        """Return whether destinations of this trust may use one more connection."""
        return trust is PROVEN or self._busy.may_grow(trust, self.free)

    def contests(self) -> list[list[Trust]]:
        """Return whose mails contend for the next free connection, and where none of them does,
        whose do then."""
        return self._busy.contests(self.free)

    def is_beyond(self, trust: Trust) -> bool:
        """Return whether destinations of this trust use more than is kept for them."""
        return self._busy.is_beyond(trust)

    def connect_within(self, name: str) -> float | None:
        """Return for how many seconds an address of a destination is tried by a connection that is
        opened now, and half of those in which it has to greet; None: as long as usual.
        Source: AMB-27."""
        found = self._records.get(name)
        is_first = found is None or (found.trust is NEW and not found.needs_time)
        if is_first and 2 * self.free < self._rules.connections:
            return self._rules.first_connect
        return None

    def open(self, name: str, now: float) -> ConnectionRecord:
        """Open a connection; a job comes with it."""
        destination = self._known(name)
        connection = ConnectionRecord(next(self._numbers), destination, now)
        self.connections[connection.number] = connection
        destination.connections += 1
        destination.last_connection = connection.number
        self._record_moments.discard(destination)
        if destination.opening_interval:
            self._pace(destination, now)
        return connection

    def _pace(self, destination: Destination, now: float) -> None:
        """Let the next connection wait until it is due. Those of a second may come together, since
        time is looked at each second."""
        interval = destination.opening_interval
        destination.next_opening = max(destination.next_opening, now) + interval
        due = destination.next_opening - max(0.0, TICK - interval)
        if due > now:
            destination.is_paced = True
            if self._opening_moments is None:
                self._opening_moments = Ranking()
            self._put(self._opening_moments, destination, due, next(self._order))

    def assign(
        self, connection: ConnectionRecord, job: int, precedence: Precedence, now: float
    ) -> None:
        """Add a job to a connection's queue."""
        before = len(connection.jobs)
        if not before:
            connection.precedence = precedence
        connection.jobs[job] = None
        connection.taken += 1
        connection.is_retiring |= connection.taken >= connection.destination.max_jobs
        length_changed(connection, before)
        if not before:
            self._leave_idle(connection)
            self._set_moment(connection)
            self._count_busy(connection.destination, 1)
            self._begin(connection, now)

    def establish(self, connection: ConnectionRecord, now: float) -> None:
        if not connection.is_established:
            connection.is_established = True
            connection.destination.established += 1
            connection.destination.has_answered = True
            self._begin(connection, now)

    def finish(self, connection: ConnectionRecord, job: int, now: float) -> None:
        """Take a finished job off a connection; its destination works."""
        destination = connection.destination
        connection.finished += 1
        destination.was_slow = now - connection.began_at > self._rules.prompt
        destination.failures = 0
        self.establish(connection, now)
        self._take_off(connection, job, now)
        self._begin(connection, now)

    def hold_up(self, connection: ConnectionRecord, now: float, *, is_held: bool) -> None:
        """Note that a connection is slow over nothing while it `is_held`, and begins anew then."""
        self._begin(connection, now)
        if is_held:
            self._slow_moments.discard(connection)

    def give_up(self, connection: ConnectionRecord, job: int, now: float) -> None:
        """Take a job off a connection that ends with it. Where it was the first one, the next one
        would end in the same way."""
        self._take_off(connection, job, now)
        self._begin(connection, now)

    def give_back(self, connection: ConnectionRecord, job: int, now: float) -> None:
        """Take a job off a connection that transmitted nothing of it, as if it had never had it:
        that says nothing about its destination."""
        connection.taken -= 1
        self._take_off(connection, job, now)
        if not connection.jobs:
            self._begin(connection, now)

    def _take_off(self, connection: ConnectionRecord, job: int, now: float) -> None:
        before = len(connection.jobs)
        del connection.jobs[job]
        length_changed(connection, before)
        if not connection.jobs:
            self._count_busy(connection.destination, -1)
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
        length_changed(connection, before)
        self._count_busy(destination, -bool(before))
        self._begin(connection, now)
        destination.connections -= 1
        destination.established -= connection.is_established
        if not destination.connections and destination not in self._record_moments:
            is_closed = destination.standing is CLOSED
            kept = self._rules.remember_closed if is_closed else self._rules.remember_broken
            self._forget_at(destination, now + kept)

    def fail(self, name: str, now: float) -> float | None:
        """Let a destination back off after a failure; return until when, or None where it backs off
        already: connections that end together are one failure."""
        destination = self._known(name)
        if destination.is_backing_off:
            return None
        destination.failures += 1
        destination.needs_time = True
        backoff = self._rules.first_backoff * destination.failures**2
        until = now + min(backoff, self._rules.max_backoff)
        self.back_off(name, until)
        return until

    def back_off(self, name: str, until: float) -> None:
        """Open no connection to a destination before this instant. What fails elsewhere adds no
        failure here, since each of many processes lets all others hear of its own. Source: SC-12,
        SC-23."""
        destination = self._known(name)
        destination.failures = max(destination.failures, 1)
        destination.is_backing_off = True
        self._judge(destination)
        destination.backoff_until = max(until, destination.backoff_until)
        self._forget_at(destination, destination.backoff_until)

    def forgive(self, name: str, now: float) -> None:
        """End the rest of a destination, and forget its failures, but not that it may need time."""
        destination = self._records.get(name)
        if destination is None or not (destination.is_backing_off or destination.failures):
            return
        destination.failures, destination.is_backing_off = 0, False
        destination.was_slow = False
        self._judge(destination)
        destination.backoff_until = 0.0
        self._record_moments.discard(destination)
        if not destination.connections:
            self._forget_at(destination, now + self._rules.remember_broken)

    def least_used(self) -> ConnectionRecord | None:
        """Return the idle connection that was used least recently. Source: AMB-17."""
        return next(iter(self._idle), None)

    def next_moment(self) -> float | None:
        """Return when `aged`, `slowed` or `end_backoffs` has something to do."""
        moments = (self._connection_moments, self._record_moments, self._slow_moments)
        ranks = [each.first_rank() for each in moments]
        if self._opening_moments is not None:
            ranks.append(self._opening_moments.first_rank())
        found = [rank[0] for rank in ranks if rank is not None]
        if (overdue := self._overdue.next_moment()) is not None:
            found.append(overdue)
        return min(found, default=None)

    def has_moment(self, now: float) -> bool:
        """Return whether a moment has come, which is to be looked at then. One comparison for most
        calls, because each event asks."""
        if now < self._nothing_before:
            return False
        moment = self.next_moment()
        self._nothing_before = math.inf if moment is None else moment
        return now >= self._nothing_before

    def aged(self, now: float) -> list[ConnectionRecord]:
        """Give connections that are too old no job any more, and return them; those
        without a job are to be closed. Source: SC-22; AMB-17."""
        over = []
        while (connection := self._connection_moments.take_due(now)) is not None:
            over.append(connection)
            if connection.jobs:
                connection.is_retiring = True
                length_changed(connection, len(connection.jobs))
        return over

    def slowed(self, now: float) -> list[str]:
        """Note which connections take long by now, and which count apart; return the destinations
        of the former. Source: AMB-27."""
        changed = []
        while (connection := self._slow_moments.take_due(now)) is not None:
            connection.is_slow = True
            connection.destination.slow += 1
            self._judge(connection.destination)
            self._overdue.comes(connection)
            changed.append(connection.destination.name)
        for connection in self._overdue.placed(now):
            self._count_apart(connection.destination, 1)
        return changed

    def end_backoffs(self, now: float) -> list[str]:
        """End the backoffs and paces that are over, and forget old records; return the
        destinations."""
        changed = []
        if (openings := self._opening_moments) is not None:
            while (destination := openings.take_due(now)) is not None:
                destination.is_paced = False
                changed.append(destination.name)
        while (destination := self._record_moments.take_due(now)) is not None:
            changed.append(destination.name)
            if destination.is_backing_off:
                destination.is_backing_off = False
                if not destination.connections and self._rules.remember_broken > 0:
                    self._forget_at(destination, now + self._rules.remember_broken)
                    continue
            if not destination.connections:
                del self._records[destination.name]
        return changed

    def _known(self, name: str) -> Destination:
        if name not in self._records:
            self._records[name] = Destination(name)
            self._set_limits(self._records[name])
        return self._records[name]

    def _begin(self, connection: ConnectionRecord, now: float) -> None:
        """Note that a connection begins its next job, or has none."""
        connection.destination.slow -= connection.is_slow
        connection.is_slow, connection.began_at = False, now
        if self._overdue.goes(connection):
            self._count_apart(connection.destination, -1)
            self._nothing_before = now  # its place may be given away
        if connection.jobs:
            self._put(self._slow_moments, connection, now + self._rules.prompt, connection.number)
            if not connection.is_established:
                moment = self._overdue.opens(connection, now)
                self._nothing_before = min(self._nothing_before, moment)
        else:
            self._slow_moments.discard(connection)
        self._judge(connection.destination)

    def _count_busy(self, destination: Destination, number: int) -> None:
        """Count connections with jobs. `_begin` follows, and judges the destination."""
        destination.busy += number
        self._busy.count(destination.trust, number)

    def _count_apart(self, destination: Destination, number: int) -> None:
        destination.apart += number
        self._busy.count(destination.trust, -number)

    def _judge(self, destination: Destination) -> None:
        if (trust := destination.judged()) is not destination.trust:
            counted = destination.busy - destination.apart
            self._busy.count(destination.trust, -counted)
            self._busy.count(trust, counted)
            destination.trust = trust

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
        self._put(self._connection_moments, connection, moment, connection.number)

    def _forget_at(self, destination: Destination, moment: float) -> None:
        self._put(self._record_moments, destination, moment, next(self._order))

    def _put(self, moments: Ranking[Member], member: Member, moment: float, order: int) -> None:
        moments.put(member, (moment, order))
        self._nothing_before = min(self._nothing_before, moment)
