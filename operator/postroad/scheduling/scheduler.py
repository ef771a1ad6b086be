"""The scheduler of one worker process: events in, decisions out.

Two schedulers in one, which share nothing but the rules: lookups go to routers, jobs go to
connections. A job that finds no place waits here, where mails are ranked; what is on a connection
is not ranked any more, so a connection's queue is short.
Source: SC-1, SC-8, SC-22, SC-26; AMB-19, AMB-25; ADR 0036."""

from collections import deque
from collections.abc import Callable
from itertools import count

from postroad.scheduling.choosing import Choice, Chooser, NoneWorks, OpenTo, Pick, Take, Wait
from postroad.scheduling.destination_records import (
    BACKING_OFF,
    ConnectionRecord,
    DestinationView,
    Lookups,
    Trust,
)
from postroad.scheduling.destinations import Destinations
from postroad.scheduling.events import (
    Assign,
    BackOff,
    BackoffCleared,
    BackoffReported,
    BackoffRequested,
    CloseConnection,
    Closed,
    ConnectionPaused,
    Decision,
    Defer,
    DeliveryJob,
    Established,
    Event,
    Finished,
    LookupFinished,
    LookupRequested,
    NotOpened,
    OpenConnection,
    Pipelined,
    Precedence,
    Site,
    StartLookup,
    Submitted,
    Tick,
    Withdrawn,
    precedence_of,
)
from postroad.scheduling.queues import MailShare, SiteQueue
from postroad.scheduling.ranking import LimitsOf, SchedulerRules, may_grow
from postroad.scheduling.waiting import Waiting

Placed = tuple[DeliveryJob, MailShare, SiteQueue, ConnectionRecord]


class Scheduler:
    """All lookups, jobs and connections of a process. `pick(n)` draws one of 0 up to n-1. Instants
    are seconds on a clock that never goes back."""

    def __init__(self, rules: SchedulerRules, pick: Pick) -> None:
        self._rules = rules
        self._lookups = Lookups(rules)
        self._destinations = Destinations(rules)
        self._chooser = Chooser(self._destinations, rules, pick)
        self._waiting = Waiting(rules, self._destinations.is_open, self._destinations.trust)
        self._shares: dict[str | None, MailShare] = {}
        self._at_work: dict[int, Placed] = {}
        self._held_back: deque[DeliveryJob] = deque()
        self._verifying = 0
        self._arrivals = count()
        self._unsettled_queues: dict[SiteQueue, None] = {}
        self._unsettled_names: dict[str, None] = {}
        self._yielding_queues: dict[SiteQueue, None] = {}
        self._yielding_names: dict[str, None] = {}
        self._now = 0.0
        self._decisions: list[Decision] = []

    def limit(self, limits_of: LimitsOf) -> None:
        """Limit the connections of destinations from now on."""
        self._destinations.limit(limits_of)

    def next_moment(self) -> float | None:
        """Return when a `Tick` is due if nothing else happens before."""
        return self._destinations.next_moment()

    def look_at(self, name: str) -> DestinationView:
        return self._destinations.look_at(name)

    def on(self, event: Event, now: float) -> list[Decision]:
        """Return what is to be done after an event, in this order."""
        self._now, self._decisions = now, []
        if self._destinations.has_moment(now):
            self._pass_moments()
        match event:
            case LookupRequested(job):
                self._lookups.ask(job)
            case LookupFinished(number):
                self._lookups.finish(number)
            case Submitted(job):
                self._submit(job)
            case Withdrawn(job):
                self._withdraw(job)
            case Finished(number, ended_session):
                self._finish(number, ended_session=ended_session)
            case Established() | ConnectionPaused() | Pipelined():
                self._note(event)
            case NotOpened(number):
                self._lose(number, is_broken=True)
            case Closed(number):
                self._lose(number, is_broken=False)
            case BackoffReported() | BackoffRequested() | BackoffCleared():
                self._set_backoff(event)
            case Tick():
                pass
        self._settle()
        self._decisions += map(StartLookup, self._lookups.start())
        return self._decisions

    def _pass_moments(self) -> None:
        for connection in self._destinations.aged(self._now):
            if connection.jobs:
                self._touch(connection.destination.name)
            else:
                self._close(connection)
        for name in (
            *self._destinations.slowed(self._now),
            *self._destinations.end_backoffs(self._now),
        ):
            self._touch(name)

    def _set_backoff(self, event: BackoffReported | BackoffRequested | BackoffCleared) -> None:
        match event:
            case BackoffReported(name, until):
                self._destinations.back_off(name, min(until, self._now + self._rules.max_backoff))
            case BackoffRequested(name, until):
                self._destinations.back_off(name, until)
            case BackoffCleared(name):
                self._destinations.forgive(name, self._now)
        self._touch(event.destination)

    def _submit(self, job: DeliveryJob) -> None:
        if job.mail is None:
            self._held_back.append(job)
        elif not (self._is_quiet and self._place_at_once(job)):
            self._wait(job)

    def _withdraw(self, job: DeliveryJob) -> None:
        if job.number in self._at_work:
            self._leave_connection(job.number, self._destinations.give_back)
            return
        share, queue = self._shares.get(job.mail), self._waiting.queue(job.site)
        if share is not None and job in share.waiting.get(queue, ()):
            self._waiting.take(share, queue, job)
            self._leave(share, job)
        self._waiting.forget(queue)

    def _admit(self) -> None:
        """Let verifications wait for their sites, never more than may be at work, since what
        waits for a site may ride free there. Source: SC-26."""
        limits = self._rules.limits[Precedence.VERIFICATION]
        while self._held_back and may_grow(self._verifying, limits, self._destinations.free):
            self._verifying += 1
            self._wait(self._held_back.popleft())

    @property
    def _is_quiet(self) -> bool:
        return self._waiting.is_empty and not self._held_back

    def _place_at_once(self, job: DeliveryJob) -> bool:
        """Place a job while no other one waits, where there is a place: what would be first of one
        is ranked in vain. Return whether there is. A mail that gets another site is left to
        `Waiting`, which ranks it by all of them from then on."""
        share = self._share_of(job)
        if job.site is not share.home and job.site != share.home:
            return False
        match self._choose(share, job.site):
            case Take(connection) if not connection.jobs or self._destinations.free:
                pass  # else `_try` finds out whether it yields
            case OpenTo(name):
                connection = self._open(name)
            case _:
                return False
        self._assign(job, share, self._waiting.queue(job.site), connection)
        return True

    def _wait(self, job: DeliveryJob) -> None:
        self._unsettled_queues[self._waiting.add(self._share_of(job), job)] = None

    def _share_of(self, job: DeliveryJob) -> MailShare:
        share = self._shares.get(job.mail)
        if share is None:
            precedence = precedence_of(job.mail, job.priority)
            share = MailShare(next(self._arrivals), precedence, job.mail, job.site)
            self._shares[job.mail] = share
        return share

    def _finish(self, number: int, *, ended_session: bool) -> None:
        if number in self._at_work:
            at = self._destinations
            self._leave_connection(number, at.give_up if ended_session else at.finish)

    def _leave_connection(
        self, number: int, take_off: Callable[[ConnectionRecord, int, float], None]
    ) -> None:
        job, share, queue, connection = self._at_work.pop(number)
        name = connection.destination.name
        take_off(connection, number, self._now)
        self._waiting.ended(share, queue)
        self._leave(share, job)
        if connection.is_retiring and not connection.jobs:
            self._close(connection)
        self._touch(name)

    def _note(self, event: Established | ConnectionPaused | Pipelined) -> None:
        """Note what a connection does. One that is not known has ended."""
        connection = self._destinations.connections.get(event.connection)
        if connection is None:
            return
        match event:
            case Established():
                self._destinations.establish(connection, self._now)
            case ConnectionPaused(_, is_held):
                self._destinations.hold_up(connection, self._now, is_held=is_held)
            case Pipelined(_, jobs):
                connection.lengthen(jobs)
        self._touch(connection.destination.name)

    def _lose(self, number: int, *, is_broken: bool) -> None:
        """Schedule the jobs of a lost connection again; a destination that fails backs off."""
        connection = self._destinations.connections.get(number)
        if connection is None:
            return
        name, numbers = connection.destination.name, list(connection.jobs)
        self._destinations.close(connection, self._now)
        if is_broken or connection.is_broken:
            until = self._destinations.fail(name, self._now)
            self._decisions += [] if until is None else [BackOff(name, until)]
        for each in numbers:
            job, share, queue, _ = self._at_work.pop(each)
            self._waiting.ended(share, queue)
            self._unsettled_queues[self._waiting.add(share, job)] = None
        self._touch(name)

    def _touch(self, name: str) -> None:
        """Note that a destination, or a connection to it, is not as it was."""
        self._waiting.refresh(name)
        self._unsettled_names[name] = None

    def _settle(self) -> None:
        """Place jobs until none that waits has a place."""
        if self._is_quiet:
            self._unsettled_queues.clear()
            self._unsettled_names.clear()
            self._yielding_queues.clear()
            self._yielding_names.clear()
            return
        while True:
            self._admit()
            self._grow()
            if self._yielding_queues and self._first_in_need() is None:
                self._unsettled_queues.update(self._yielding_queues)
                self._unsettled_names.update(self._yielding_names)
                self._yielding_queues.clear()
                self._yielding_names.clear()
            if self._unsettled_queues:
                self._fill(self._unsettled_queues.popitem()[0])
            elif self._unsettled_names:
                self._fill_at(self._unsettled_names.popitem()[0])
            else:
                return

    def _grow(self) -> None:
        """Give free connections to the mails that come first. Source: SC-6, SC-8; AMB-14."""
        while (free := self._destinations.free) and (best := self._best(free)) is not None:
            if not self._try(*best):
                break

    def _best(self, free: int) -> tuple[MailShare, SiteQueue] | None:
        """Return who gets the next of these free connections. Source: AMB-27."""
        found = (self._waiting.best(free, each) for each in self._destinations.contests())
        return next(filter(None, found), None)

    def _fill_at(self, name: str) -> None:
        """Fill the connections to a destination. Where it backs off, other destinations serve all
        its sites, or none does."""
        found = self._destinations.find(name)
        if found is not None and found.standing is BACKING_OFF:
            self._unsettled_queues.update(dict.fromkeys(self._waiting.all_at(name)))
            return
        while (queue := self._waiting.first_at(name)) is not None:
            if not self._place_first(queue):
                if queue in self._yielding_queues:
                    self._yielding_names[name] = None
                return

    def _fill(self, queue: SiteQueue) -> None:
        while self._place_first(queue):
            pass

    def _place_first(self, queue: SiteQueue) -> bool:
        share = queue.mails.first()
        return share is not None and self._try(share, queue)

    def _yields(self, share: MailShare, connection: ConnectionRecord) -> bool:
        """Return whether a mail's job leaves a place on a connection empty, so that the connection
        becomes idle, and free for a mail that comes before it and has none, or for a destination
        that is trusted more. Source: AMB-25, AMB-27."""
        first = self._first_in_need()
        if first is None:
            return False
        trust = connection.destination.trust
        return first.claim < share.claim or self._destinations.is_beyond(trust)

    def _first_in_need(self) -> MailShare | None:
        """Return the mail that gets the next connection that becomes free, while none is."""
        if self._destinations.free:
            return None
        best = self._waiting.best(0, [e for e in Trust if not self._destinations.is_beyond(e)])
        return None if best is None else best[0]

    def _try(self, share: MailShare, queue: SiteQueue) -> bool:
        """Choose for a job of this mail; return whether anything changed."""
        match self._choose(share, queue.site):
            case Take(connection):
                if connection.jobs and self._yields(share, connection):
                    self._yielding_queues[queue] = None
                    return False
                self._place(share, queue, connection)
            case OpenTo(name):
                self._place(share, queue, self._open(name))
            case NoneWorks(until):
                self._defer(queue, until)
            case Wait(tier):
                if tier == queue.tier:
                    return False
                self._waiting.use_tiers(queue, tier)
        return True

    def _choose(self, share: MailShare, site: Site) -> Choice:
        limits = self._rules.limits[share.precedence]
        growing = may_grow(share.working, limits, self._destinations.free)
        return self._chooser.choose(site.tiers, share.precedence, may_grow=growing)

    def _place(self, share: MailShare, queue: SiteQueue, connection: ConnectionRecord) -> None:
        self._assign(self._waiting.take(share, queue), share, queue, connection)

    def _assign(
        self, job: DeliveryJob, share: MailShare, queue: SiteQueue, connection: ConnectionRecord
    ) -> None:
        self._destinations.assign(connection, job.number, share.precedence, self._now)
        self._at_work[job.number] = (job, share, queue, connection)
        share.turn = next(self._arrivals)
        self._waiting.began(share, queue)
        self._touch(connection.destination.name)
        self._decisions.append(Assign(job.number, connection.number))

    def _open(self, name: str) -> ConnectionRecord:
        while self._destinations.is_full and (idle := self._destinations.least_used()) is not None:
            self._close(idle)
        within = self._destinations.connect_within(name)
        connection = self._destinations.open(name, self._now)
        self._decisions.append(OpenConnection(connection.number, name, within))
        return connection

    def _close(self, connection: ConnectionRecord) -> None:
        self._destinations.close(connection, self._now)
        self._decisions.append(CloseConnection(connection.number))
        self._touch(connection.destination.name)

    def _defer(self, queue: SiteQueue, until: float) -> None:
        for share in queue.mails.members():
            while queue in share.waiting:
                job = self._waiting.take(share, queue)
                self._decisions.append(Defer(job.number, until))
                self._leave(share, job)
        self._waiting.forget(queue)

    def _leave(self, share: MailShare, job: DeliveryJob) -> None:
        self._verifying -= job.mail is None
        if share.is_over:
            self._shares.pop(share.mail, None)
