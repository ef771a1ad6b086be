"""The record of one destination, and of one connection; the number of connections that destinations
may use by what is known of them, so that those that answer find room beside those that do not; the
choice of the address that is looked up next: routers are all alike, and so are the addresses of a
mail.

Source: SC-1, SC-2, SC-6 for the form, SC-9, SC-12, SC-13, SC-26; AMB-14, AMB-26, AMB-27;
ADR 0070."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import count

from postroad.scheduling.events import LookupJob, Precedence, precedence_of
from postroad.scheduling.ranking import (
    Contest,
    Ranking,
    SchedulerRules,
    Share,
    ShareLimits,
    may_grow,
)


class Trust(IntEnum):
    """Facts of a destination, the best first."""

    PROVEN = 0
    """It answered, and took no longer over its last job than `SchedulerRules.prompt`."""

    NEW = 1
    """It has not answered yet, and nothing else is known."""

    FAILING = 2
    """It failed, or takes long: more than half of its connections do, or its last job did."""


PROVEN, NEW, FAILING = Trust


SCALES = (0.0, 10.0, 3.0)
"""Number of connections they may use for each that is free, by trust. The less for the failing, so
that new ones find room beside them."""


class BusyConnections:
    """The connections with jobs, by the trust in their destinations. Some of all are kept for new
    and for failing destinations. Beyond them they may use what no mail for a destination that is
    trusted more wants, but for a share that stays free, so that the next such mail finds room. What
    the failing ones use counts for the new ones, too."""

    def __init__(self, rules: SchedulerRules) -> None:
        self._used = [0] * len(Trust)
        """By trust, also by those that are trusted less."""
        least = (1.0, rules.least_for_new, rules.least_for_failing)
        self._limits = [
            ShareLimits(max(1, int(kept * rules.connections)), scale)
            for kept, scale in zip(least, SCALES, strict=True)
        ]

    def count(self, trust: Trust, number: int) -> None:
        """Add so many connections to those of a trust."""
        for each in range(trust + 1):
            self._used[each] += number

    def may_grow(self, trust: Trust, free: int) -> bool:
        """Return whether destinations of this trust may use one more of the free connections."""
        return trust is PROVEN or may_grow(self._used[trust], self._limits[trust], free)

    def contests(self, free: int) -> list[list[Trust]]:
        """Return whose mails contend for the next of these free connections, and where none of them
        does, whose do then."""
        within, then = [PROVEN], []
        for each in (NEW, FAILING):
            if self._used[each] < self._limits[each].max_message_concurrency:
                within.append(each)
            elif may_grow(self._used[each], self._limits[each], free):
                then.append([each])
        return [within, *then]

    def is_beyond(self, trust: Trust) -> bool:
        """Return whether destinations of this trust use more than is kept for them."""
        if trust is PROVEN:
            return False
        return self._used[trust] > self._limits[trust].max_message_concurrency


class LookupShare(Share):
    """The share of a mail with addresses to look up."""

    __slots__ = ("mail", "waiting")

    def __init__(self, number: int, precedence: Precedence, mail: str | None) -> None:
        super().__init__(number, precedence)
        self.mail = mail
        self.waiting: list[int] = []


class Lookups:
    """The lookups that wait, and those that are under way."""

    def __init__(self, rules: SchedulerRules) -> None:
        self._free = rules.routers
        self._contests: dict[Precedence, Contest[LookupShare]] = {
            each: Contest(rules.limits[each]) for each in Precedence
        }
        self._shares: dict[str | None, LookupShare] = {}
        self._under_way: dict[int, LookupShare] = {}
        self._numbers = count()

    def ask(self, job: LookupJob) -> None:
        """Let a lookup wait."""
        share = self._shares.get(job.mail)
        if share is None:
            precedence = precedence_of(job.mail, job.priority)
            share = LookupShare(next(self._numbers), precedence, job.mail)
            self._shares[job.mail] = share
        share.waiting.append(job.number)
        self._contests[share.precedence].enter(share)

    def finish(self, job: int) -> None:
        """Take a lookup off its router."""
        share = self._under_way.pop(job, None)
        if share is None:
            return
        self._free += 1
        share.working -= 1
        if share.waiting:
            self._contests[share.precedence].enter(share)
        elif not share.working:
            del self._shares[share.mail]

    def start(self) -> list[int]:
        """Return the lookups that start now. Source: SC-6, SC-9."""
        started: list[int] = []
        if not self._shares:
            return started  # mostly: routes are known, and each event asks
        for contest in self._contests.values():
            while self._free and (share := contest.best(self._free)) is not None:
                self._free -= 1
                share.working, share.turn = share.working + 1, next(self._numbers)
                job = share.waiting.pop()
                self._under_way[job] = share
                started.append(job)
                if share.waiting:
                    contest.enter(share)
                else:
                    contest.leave(share)
        return started


class Standing(Enum):
    """The class of a destination. Source: SC-13."""

    ACTIVE = "a connection has jobs"
    IDLE = "a connection is open"
    BACKING_OFF = "it failed, and is not tried yet"
    DUE = "it failed, and its backoff is over"
    CLOSED = "it had a connection not long ago"
    UNUSED = "nothing is known"


ACTIVE, IDLE, BACKING_OFF, DUE, CLOSED, UNUSED = Standing


class ConnectionRecord:
    """One connection's record, with its jobs in the order in which it got them."""

    __slots__ = (
        "began_at", "destination", "finished", "idle_since", "is_established", "is_retiring",
        "is_slow", "jobs", "longest_queue", "number", "opened_at", "precedence", "taken",
        "turned_idle",
    )  # fmt: skip

    def __init__(self, number: int, destination: Destination, now: float) -> None:
        self.number = number
        self.destination = destination
        self.opened_at = now
        self.began_at = now
        """When it began what it does now: to open, or its first job."""
        self.is_slow = False
        """True if it takes long over that."""
        self.jobs: dict[int, None] = {}
        self.longest_queue = 0
        """Bound of rides on it, if that is more than `SchedulerRules.longest_queue`."""
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
        """True if it ended before it finished a job, so that the next one would too."""
        return self.taken > 0 and self.finished == 0

    def lengthen(self, jobs: int) -> None:
        """Let its queue be so long, or as long as others."""
        _leave_active(self, len(self.jobs))
        self.longest_queue = jobs
        _enter_active(self)


class Destination:
    __slots__ = (
        "active",
        "apart",
        "backoff_until",
        "busy",
        "connections",
        "established",
        "failures",
        "has_answered",
        "idle",
        "is_backing_off",
        "is_paced",
        "last_connection",
        "max_connections",
        "max_jobs",
        "name",
        "needs_time",
        "next_opening",
        "opening_interval",
        "slow",
        "trust",
        "was_slow",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.max_connections = self.max_jobs = 1
        """Limits of its connections, and of the jobs of each; `Destinations` sets them."""
        self.opening_interval = 0.0
        """Seconds between two connections that are opened; 0: any number is."""
        self.next_opening = 0.0
        self.is_paced = False
        """True if the next connection is not due yet."""
        self.connections = 0
        self.established = 0
        self.active: dict[tuple[Precedence, int, int], Ranking[ConnectionRecord]] = {}
        """Connections that take jobs and have some, newest first, by how many they have and may
        have."""
        self.idle: OrderedDict[ConnectionRecord, None] = OrderedDict()
        """Those without a job, the one used last at the end."""
        self.failures = 0
        self.is_backing_off = False
        self.backoff_until = 0.0
        self.last_connection = 0
        """The number of the newest connection that there ever was; 0 for none."""
        self.busy = 0
        """Number of connections that have jobs."""
        self.apart = 0
        """Number of them that count apart, since they wait for it."""
        self.slow = 0
        """Number of connections that take long."""
        self.has_answered = False
        self.needs_time = False
        """True if it failed: until it has answered, the time of a first try may be too little."""
        self.was_slow = False
        """True if the last job took long."""
        self.trust = NEW

    @property
    def standing(self) -> Standing:
        """The class of this destination. What happens to its open connections counts first, so
        that a backoff ends none of them."""
        if self.active:
            return ACTIVE
        if self.idle:
            return IDLE
        if self.is_backing_off:
            return BACKING_OFF
        if self.failures:
            return DUE
        return CLOSED if self.last_connection else UNUSED

    def judged(self) -> Trust:
        """Return the trust that follows from what is known."""
        if self.failures or self.was_slow or 2 * self.slow > self.busy:
            return FAILING
        return PROVEN if self.has_answered else NEW

    @property
    def last_idle(self) -> ConnectionRecord | None:
        return next(reversed(self.idle), None)

    def newest_active(
        self, precedence: Precedence, below: int | None, longest: int | None = None
    ) -> ConnectionRecord | None:
        """Return the newest active connection that serves this precedence, of those with fewer
        jobs than `below`, and than their queue may have where `longest` is usual. Source: AMB-23,
        AMB-26."""
        found = [
            newest
            for (served, length, own), ranking in self.active.items()
            if served >= precedence and (below is None or length < below)
            if longest is None or length < max(longest, own)
            if (newest := ranking.first()) is not None
        ]
        return max(found, key=lambda each: each.number, default=None)


def length_changed(connection: ConnectionRecord, before: int) -> None:
    """Keep `active` true after a connection got a job, finished one, or grew too old."""
    _leave_active(connection, before)
    _enter_active(connection)


def _leave_active(connection: ConnectionRecord, jobs: int) -> None:
    active = connection.destination.active
    old = (connection.precedence, jobs, connection.longest_queue)
    if old in active:
        active[old].discard(connection)
        if not active[old]:
            del active[old]


def _enter_active(connection: ConnectionRecord) -> None:
    if connection.jobs and not connection.is_retiring:
        new = (connection.precedence, len(connection.jobs), connection.longest_queue)
        ranking = connection.destination.active.setdefault(new, Ranking())
        ranking.put(connection, (-connection.number,))


@dataclass(frozen=True, slots=True)
class DestinationView:
    """Number of connections a destination has, until when it backs off (None: it does not), and
    whether it failed or takes long."""

    connections: int
    backoff_until: float | None
    is_failing: bool = False
