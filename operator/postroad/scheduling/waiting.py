"""The jobs that wait: which of them gets a place on a connection, and which a new connection.

A place at a site goes to the mail with the fewest jobs at work at that site; a free connection to
the mail with the fewest jobs at work at all, of those that wait at a site that is open for one.
Both cost logarithms, since nothing that a job changes elsewhere changes the order at a site, and
since a destination stands in the contest for all that wait for it, so that it opens and fills up
at once for thousands of sites. Of a mail with jobs for one site, its site stands among them, so
that a site that turns to another tier takes them all along. The few with jobs for many
destinations, lists, are in the contest themselves.
Source: SC-8; AMB-14, AMB-25, AMB-27.

Connections whose next hops take long: so many of them count apart, so that those that make
headway have their places. Source: AMB-27; ADR 0074."""

import math
from collections.abc import Callable, Iterable
from itertools import count

from postroad.scheduling.destination_records import FAILING, ConnectionRecord, Trust
from postroad.scheduling.events import DeliveryJob, Precedence, Site
from postroad.scheduling.queues import Contenders, DestinationQueue, Locals, MailShare, SiteQueue
from postroad.scheduling.ranking import Contest, Ranking, SchedulerRules

MAX_RANKED = 8
"""Destinations at which a mail is ranked again whenever a job of it begins or ends."""


class Waiting:
    """All jobs that wait. `is_open` returns whether a destination is open for a new connection,
    `trust` how far it is trusted."""

    def __init__(
        self,
        rules: SchedulerRules,
        is_open: Callable[[str], bool],
        trust: Callable[[str], Trust],
    ) -> None:
        self._is_open, self._trust = is_open, trust
        self._contests: dict[Precedence, list[Contest[MailShare | Contenders]]] = {
            each: [Contest(rules.limits[each]) for _ in Trust] for each in Precedence
        }
        """By precedence, then by trust."""
        self._queues: dict[Site, SiteQueue] = {}
        self._at: dict[str, DestinationQueue] = {}
        self._numbers = count(1)

    @property
    def is_empty(self) -> bool:
        return not self._at

    def best(self, free: int, trusts: Iterable[Trust]) -> tuple[MailShare, SiteQueue] | None:
        """Return who gets the next of these free connections, at a destination of one of these
        trusts. Source: SC-6; AMB-14, AMB-27."""
        for contests in self._contests.values():
            found = [(best, each) for each in trusts if (best := contests[each].best(free))]
            if not found:
                continue
            first, trust = min(found, key=lambda each: each[0].rank)
            if isinstance(first, Contenders):
                return first.first
            return first, next(iter(first.at[next(iter(first.open_at[trust]))]))
        return None

    def first_at(self, name: str) -> SiteQueue | None:
        """Return the site that gets the next place on a connection to this destination."""
        found = self._at.get(name)
        return None if found is None else found.sites.first()

    def all_at(self, name: str) -> list[SiteQueue]:
        """Return the sites with jobs that wait for this destination, among others."""
        return self._at[name].sites.members() if name in self._at else []

    def queue(self, site: Site) -> SiteQueue:
        """Return the queue of a site; it is kept while it has jobs, waiting or at work."""
        if (queue := self._queues.get(site)) is None:
            queue = self._queues[site] = SiteQueue(next(self._numbers), site)
        return queue

    def add(self, share: MailShare, job: DeliveryJob) -> SiteQueue:
        queue = self.queue(job.site)
        if not queue.mails:
            queue.tier = 0
        is_more = queue not in share.waiting
        share.waiting.setdefault(queue, []).append(job)
        if share.is_spread and is_more:
            self._wait_at(share, queue)
        elif not share.is_spread and job.site != share.home:
            self._spread(share)
        self.changed(share, queue)
        return queue

    def take(
        self, share: MailShare, queue: SiteQueue, job: DeliveryJob | None = None
    ) -> DeliveryJob:
        """Take a job of a mail out; without one, any of its jobs for this site."""
        jobs = share.waiting[queue]
        if job is None:
            job = jobs.pop()
        else:
            jobs.remove(job)
        if not jobs:
            del share.waiting[queue]
            queue.mails.discard(share)
            if share.is_spread:
                self._leave_at(share, queue)
            else:
                self._rank_local(share, queue)
            self._rank_queue(queue)
        return job

    def began(self, share: MailShare, queue: SiteQueue) -> None:
        """Count a job that goes to a connection."""
        share.working += 1
        share.at_work[queue] = share.at_work.get(queue, 0) + 1
        queue.at_work += 1
        self.changed(share, queue)

    def ended(self, share: MailShare, queue: SiteQueue) -> None:
        """Count a job that left its connection."""
        share.working -= 1
        share.at_work[queue] -= 1
        queue.at_work -= 1
        if not share.at_work[queue]:
            del share.at_work[queue]
        self.changed(share, queue)
        self.forget(queue)

    def forget(self, queue: SiteQueue) -> None:
        if not queue.at_work and not queue.mails:
            self._queues.pop(queue.site, None)

    def changed(self, share: MailShare, queue: SiteQueue) -> None:
        """Rank a mail again whose jobs changed at this site."""
        if share.is_spread:
            self._rank_spread(share)
        if queue not in share.waiting:
            return
        queue.mails.put(share, (share.precedence, share.at_work.get(queue, 0), share.turn))
        if not share.is_spread:
            self._rank_local(share, queue)
        self._rank_queue(queue)

    def use_tiers(self, queue: SiteQueue, tier: int) -> None:
        """Let the jobs of a site wait for the destinations of all tiers up to this one."""
        spread = list(queue.spread)
        for share in spread:
            self._leave_at(share, queue)
        for name in queue.names:
            for precedence, found in queue.locals.items():
                self._discard(name, precedence, found)
            self._leave(queue, name)
        queue.tier = tier
        self._rank_queue(queue)
        for share in spread:
            self._wait_at(share, queue)
            self._rank_spread(share)
        for precedence, found in queue.locals.items():
            self._rank_locals(precedence, found)

    def refresh(self, name: str) -> None:
        """Note that a destination may have become open, or be so no more, or that it is trusted
        more or less. Costs nothing for a site or a mail, but for lists."""
        found = self._at.get(name)
        if found is None:
            return
        is_open, trust = self._is_open(name), self._trust(name)
        if (is_open, trust) == (found.is_open, found.trust):
            return
        for precedence, contenders in found.contenders.items():
            self._contests[precedence][found.trust].leave(contenders)
        for share in found.lists:
            share.open_at[found.trust].pop(name, None)
        if is_open is not found.is_open:
            found.opened = next(self._numbers)
        found.is_open, found.trust = is_open, trust
        for precedence, contenders in found.contenders.items():
            self._enter_or_leave(precedence, contenders)
        for share in found.lists:
            _set_open_at(share, found)
            if is_open:
                share.open_at[trust].move_to_end(name, last=False)
            self._rank_spread(share)

    # Mails with jobs for several sites

    def _spread(self, share: MailShare) -> None:
        """Rank a mail by its destinations from now on, no more by its site."""
        for queue in share.waiting:
            if (found := queue.locals.get(share.precedence)) is not None:
                found.ranking.discard(share)
                self._rank_locals(share.precedence, found)
        share.is_spread = True
        for queue in share.waiting:
            self._wait_at(share, queue)

    def _wait_at(self, share: MailShare, queue: SiteQueue) -> None:
        queue.spread[share] = None
        for name in queue.names:
            share.at.setdefault(name, {})[queue] = None
        if share.is_list:
            names = queue.names
        elif len(share.at) > MAX_RANKED:
            names = list(share.at)
            for name in names:
                self._discard(name, share.precedence, share)
            share.become_list()
        else:
            return
        for name in names:
            found = self._known(name)
            found.lists[share] = None
            _set_open_at(share, found)

    def _leave_at(self, share: MailShare, queue: SiteQueue) -> None:
        queue.spread.pop(share)
        for name in queue.names:
            queues = share.at[name]
            del queues[queue]
            if queues:
                continue
            del share.at[name]
            if share.is_list:
                share.open_at[self._at[name].trust].pop(name, None)
            self._at[name].lists.pop(share, None)
            self._discard(name, share.precedence, share)
        if share.is_list:
            self._rank_spread(share)

    def _rank_spread(self, share: MailShare) -> None:
        if not share.is_list:
            for name in share.at:
                self._put(name, share.precedence, share)
            return
        for open_at, contest in zip(share.open_at, self._contests[share.precedence], strict=True):
            if open_at:
                contest.enter(share)
            else:
                contest.leave(share)

    # Mails with jobs for one site

    def _rank_local(self, share: MailShare, queue: SiteQueue) -> None:
        if share.precedence not in queue.locals:
            queue.locals[share.precedence] = Locals(queue)
        found = queue.locals[share.precedence]
        if queue in share.waiting:
            found.ranking.put(share, share.rank)
        else:
            found.ranking.discard(share)
        self._rank_locals(share.precedence, found)

    def _rank_locals(self, precedence: Precedence, found: Locals) -> None:
        for name in found.queue.names:
            if found.ranking:
                self._put(name, precedence, found)
            else:
                self._discard(name, precedence, found)

    # Destinations

    def _known(self, name: str) -> DestinationQueue:
        if name not in self._at:
            self._at[name] = DestinationQueue(name, self._trust(name), is_open=self._is_open(name))
        return self._at[name]

    def _put(self, name: str, precedence: Precedence, contender: Locals | MailShare) -> None:
        destination = self._known(name)
        if precedence not in destination.contenders:
            destination.contenders[precedence] = Contenders(destination)
        found = destination.contenders[precedence]
        found.ranking.put(contender, contender.rank)
        self._enter_or_leave(precedence, found)

    def _discard(self, name: str, precedence: Precedence, contender: Locals | MailShare) -> None:
        if name in self._at and precedence in (known := self._at[name].contenders):
            known[precedence].ranking.discard(contender)
            self._enter_or_leave(precedence, known[precedence])

    def _enter_or_leave(self, precedence: Precedence, found: Contenders) -> None:
        contest = self._contests[precedence][found.destination.trust]
        if found.destination.is_open and found.ranking:
            contest.enter(found)
        else:
            contest.leave(found)

    def _rank_queue(self, queue: SiteQueue) -> None:
        rank = queue.mails.first_rank()
        for name in queue.names:
            if rank is None:
                self._leave(queue, name)
            else:
                self._known(name).sites.put(queue, (*rank, queue.number))

    def _leave(self, queue: SiteQueue, name: str) -> None:
        if (found := self._at.get(name)) is not None:
            found.sites.discard(queue)
            if not found.sites:
                del self._at[name]


def _set_open_at(share: MailShare, found: DestinationQueue) -> None:
    if found.is_open:
        share.open_at[found.trust][found.name] = None
    else:
        share.open_at[found.trust].pop(found.name, None)


class OverdueConnections:
    """The connections that are overdue, and which of them count apart: as many as there are places.
    At most half of the places are for destinations that are failing, so that what opens to new ones
    finds one beside them. An overdue connection without a place counts as all others do."""

    def __init__(self, rules: SchedulerRules) -> None:
        self._after = rules.overdue_after
        self._places = rules.overdue_places
        self._moments: Ranking[ConnectionRecord] = Ranking()
        """Of those that open, by when they are overdue."""
        self._lines: dict[bool, dict[ConnectionRecord, None]] = {False: {}, True: {}}
        """Those without a place, by whether their destination was failing, in their order."""
        self._apart: dict[ConnectionRecord, bool] = {}
        """Those with a place, and whether their destination was failing."""
        self._failing = 0

    def __len__(self) -> int:
        """Number that count apart."""
        return len(self._apart)

    def opens(self, connection: ConnectionRecord, now: float) -> float:
        """Note that a connection begins to open; return when it is overdue."""
        if not self._places:
            return math.inf
        self._moments.put(connection, (now + self._after, connection.number))
        return now + self._after

    def comes(self, connection: ConnectionRecord) -> None:
        if self._places and connection not in self._apart:
            is_failing = connection.destination.trust is FAILING
            self._lines[not is_failing].pop(connection, None)
            self._lines[is_failing][connection] = None

    def goes(self, connection: ConnectionRecord) -> bool:
        """Note that a connection is overdue no more; return whether it counted apart."""
        self._moments.discard(connection)
        for line in self._lines.values():
            line.pop(connection, None)
        is_failing = self._apart.pop(connection, None)
        self._failing -= bool(is_failing)
        return is_failing is not None

    def next_moment(self) -> float | None:
        """Return when `placed` has something to do."""
        if any(line and self._has_place(is_failing=each) for each, line in self._lines.items()):
            return -math.inf
        rank = self._moments.first_rank()
        return None if rank is None else rank[0]

    def placed(self, now: float) -> list[ConnectionRecord]:
        """Note which openings are overdue by now, and give all places away; return the connections
        that count apart from now on."""
        while (connection := self._moments.take_due(now)) is not None:
            self.comes(connection)
        found = []
        for is_failing, line in self._lines.items():
            while line and self._has_place(is_failing=is_failing):
                connection = next(iter(line))
                del line[connection]
                self._apart[connection] = is_failing
                self._failing += is_failing
                found.append(connection)
        return found

    def _has_place(self, *, is_failing: bool) -> bool:
        places = self._places
        return len(self) < places and not (is_failing and 2 * self._failing >= places)
