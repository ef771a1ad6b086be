"""The jobs that wait: which of them gets a place on a connection, and which a new connection.

A place at a site goes to the mail with the fewest jobs at work at that site; a free connection to
the mail with the fewest jobs at work at all, of those that wait at a site that is open for one.
Both cost logarithms, since nothing that a job changes elsewhere changes the order at a site: a mail
with jobs for one site only is ranked in that site, which stands in the contest for the first of
them; the few with jobs for several sites are in the contest themselves.
Source: SC-8; AMB-14, AMB-25.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from postroad.scheduling.jobs import DeliveryJob, Precedence, Site
from postroad.scheduling.ranking import Rank, Ranking
from postroad.scheduling.rules import Order, SchedulerRules
from postroad.scheduling.shares import Contest, Share


class MailShare(Share):
    """The share of a mail with delivery jobs."""

    __slots__ = ("at_work", "home", "is_spread", "mail", "open_sites", "waiting")

    def __init__(self, number: int, precedence: Precedence, mail: str | None, home: Site) -> None:
        super().__init__(number, precedence)
        self.mail = mail
        self.home = home
        self.is_spread = False
        """Whether it has had jobs for other sites than its first."""
        self.waiting: dict[SiteQueue, list[DeliveryJob]] = {}
        self.open_sites: OrderedDict[SiteQueue, None] = OrderedDict()
        """Those of `waiting` that are open, in the order of their jobs, but for one that opens
        while jobs wait, which is first: a connection to it may be idle. Only of a spread mail."""
        self.at_work: dict[SiteQueue, int] = {}

    @property
    def is_over(self) -> bool:
        """Whether it has no job left."""
        return not self.waiting and not self.working

    def claim(self, order: Order) -> Rank:
        """What compares two mails where one waits for a connection that the other uses."""
        number = self.working if order is Order.FEWEST_FIRST else self.number
        return (self.precedence, number)


class Locals:
    """The mails of one precedence that have jobs for one site only; the first stands for them."""

    __slots__ = ("queue", "ranking")

    def __init__(self, queue: SiteQueue) -> None:
        self.queue = queue
        self.ranking: Ranking[MailShare] = Ranking()

    @property
    def first(self) -> MailShare:
        """The first mail. There is one, else this would not be in a contest."""
        first = self.ranking.first()
        assert first is not None
        return first

    @property
    def working(self) -> int:
        """How many jobs the first mail has at work."""
        return self.first.working

    def rank(self, order: Order) -> Rank:
        """The rank of the first mail."""
        return self.first.rank(order)


class SiteQueue:
    """The mails with jobs that wait for one site. `tier` is the last one that its jobs may use."""

    __slots__ = ("at_work", "is_open", "locals", "mails", "number", "site", "spread", "tier")

    def __init__(self, number: int, site: Site) -> None:
        self.number = number
        self.site = site
        self.tier = 0
        self.is_open = False
        self.at_work = 0
        self.mails: Ranking[MailShare] = Ranking()
        self.spread: dict[MailShare, None] = {}
        self.locals: dict[Precedence, Locals] = {}

    @property
    def names(self) -> list[str]:
        """The destinations that its jobs may use."""
        return [name for tier in self.site.tiers[: self.tier + 1] for name in tier]


class Waiting:
    """All jobs that wait. `is_open` returns whether a destination is open for a new connection."""

    def __init__(self, rules: SchedulerRules, is_open: Callable[[str], bool]) -> None:
        self._order, self._is_open = rules.order, is_open
        self._contests: dict[Precedence, Contest[MailShare | Locals]] = {
            each: Contest(rules.order, rules.limits[each]) for each in Precedence
        }
        self._queues: dict[Site, SiteQueue] = {}
        self._at: dict[str, Ranking[SiteQueue]] = {}
        self._was_open: dict[str, bool] = {}
        self._numbers = count()

    def best(self, free: int) -> tuple[MailShare, SiteQueue] | None:
        """Return who gets the next of these free connections. Source: SC-6; AMB-14."""
        for contest in self._contests.values():
            found = contest.best(free)
            if isinstance(found, Locals):
                return found.first, found.queue
            if found is not None:
                return found, next(iter(found.open_sites))
        return None

    def first_at(self, name: str) -> SiteQueue | None:
        """Return the site that gets the next place on a connection to this destination."""
        ranking = self._at.get(name)
        return None if ranking is None else ranking.first()

    def all_at(self, name: str) -> list[SiteQueue]:
        """Return the sites with jobs that wait for this destination, among others."""
        return self._at[name].members() if name in self._at else []

    def queue(self, site: Site) -> SiteQueue:
        """Return the queue of a site; it is kept while it has jobs, waiting or at work."""
        if site not in self._queues:
            self._queues[site] = SiteQueue(next(self._numbers), site)
        return self._queues[site]

    def add(self, share: MailShare, job: DeliveryJob) -> SiteQueue:
        """Let a job wait."""
        queue = self.queue(job.site)
        is_new = not queue.mails
        share.waiting.setdefault(queue, []).append(job)
        is_spread = job.site != share.home or self._order is Order.AS_LISTED
        if is_spread and not share.is_spread:
            self._spread(share)
        if is_new:
            self.use_tiers(queue, 0)
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
            queue.spread.pop(share, None)
            self._set_open_site(share, queue, is_open=False)
            self._rank_locals(share, queue)
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
        """Forget the queue of a site without jobs."""
        if not queue.at_work and not queue.mails:
            self._queues.pop(queue.site, None)

    def changed(self, share: MailShare, queue: SiteQueue) -> None:
        """Rank a mail again whose jobs changed at this site."""
        if share.is_spread and share.open_sites:
            self._contests[share.precedence].enter(share)
        if queue not in share.waiting:
            return
        rank: Rank = (share.at_work.get(queue, 0), share.turn)
        if self._order is Order.AS_LISTED:
            rank = (share.number,)
        queue.mails.put(share, (share.precedence, *rank))
        if share.is_spread:
            queue.spread[share] = None
            self._set_open_site(share, queue, is_open=queue.is_open)
        self._rank_locals(share, queue)
        self._rank_queue(queue)

    def use_tiers(self, queue: SiteQueue, tier: int) -> None:
        """Let the jobs of a site wait for the destinations of all tiers up to this one."""
        for name in queue.names:
            self._leave(queue, name)
        queue.tier = tier
        self._rank_queue(queue)
        self._set_open(queue, any(map(self._is_open, queue.names)))

    def refresh(self, name: str) -> None:
        """Note that a destination may have become open, or be so no more."""
        is_open = self._is_open(name)
        if self._was_open.get(name, is_open) is is_open:
            return
        self._was_open[name] = is_open
        for queue in self.all_at(name):
            self._set_open(queue, is_open or any(map(self._is_open, queue.names)))

    def _set_open(self, queue: SiteQueue, is_open: bool) -> None:
        if queue.is_open is is_open:
            return
        queue.is_open = is_open
        for share in queue.spread:
            self._set_open_site(share, queue, is_open=is_open)
            if is_open:
                share.open_sites.move_to_end(queue, last=False)
        for precedence, found in queue.locals.items():
            self._enter_or_leave(precedence, found, is_open=is_open)

    def _set_open_site(self, share: MailShare, queue: SiteQueue, *, is_open: bool) -> None:
        if is_open and queue not in share.open_sites:
            share.open_sites[queue] = None
        elif not is_open:
            share.open_sites.pop(queue, None)
        if share.is_spread:
            contest = self._contests[share.precedence]
            if share.open_sites:
                contest.enter(share)
            else:
                contest.leave(share)

    def _rank_locals(self, share: MailShare, queue: SiteQueue) -> None:
        found = queue.locals.get(share.precedence)
        if found is None:
            if share.is_spread:
                return
            found = queue.locals[share.precedence] = Locals(queue)
        if share.is_spread or queue not in share.waiting:
            found.ranking.discard(share)
        else:
            found.ranking.put(share, share.rank(self._order))
        self._enter_or_leave(share.precedence, found, is_open=queue.is_open)

    def _enter_or_leave(self, precedence: Precedence, found: Locals, *, is_open: bool) -> None:
        if is_open and found.ranking:
            self._contests[precedence].enter(found)
        else:
            self._contests[precedence].leave(found)

    def _rank_queue(self, queue: SiteQueue) -> None:
        rank = queue.mails.first_rank()
        for name in queue.names:
            if rank is None:
                self._leave(queue, name)
                continue
            if name not in self._at:
                self._at[name] = Ranking()
                self._was_open[name] = self._is_open(name)
            self._at[name].put(queue, (*rank, queue.number))

    def _leave(self, queue: SiteQueue, name: str) -> None:
        if name in self._at:
            self._at[name].discard(queue)
            if not self._at[name]:
                del self._at[name], self._was_open[name]

    def _spread(self, share: MailShare) -> None:
        share.is_spread = True
        for queue in share.waiting:
            if queue.locals:
                self._rank_locals(share, queue)
            self.changed(share, queue)
