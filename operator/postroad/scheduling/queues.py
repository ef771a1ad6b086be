"""Waiting lists: mails at their sites, sites at their destinations, and what stands for them in a
contest.

Source: SC-8; AMB-14, AMB-25."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain

from postroad.scheduling.destination_records import Trust
from postroad.scheduling.events import DeliveryJob, Precedence, Site
from postroad.scheduling.ranking import Rank, Ranking, Share


class MailShare(Share):
    """The share of a mail with delivery jobs."""

    __slots__ = (
        "at", "at_work", "home", "is_list", "is_spread", "mail", "open_at", "waiting",
    )  # fmt: skip

    def __init__(self, number: int, precedence: Precedence, mail: str | None, home: Site) -> None:
        super().__init__(number, precedence)
        self.mail = mail
        self.home = home
        self.is_spread = False
        """True if it has had jobs for other sites than its first."""
        self.is_list = False
        """True if it is in the contest itself: it has had jobs for many destinations."""
        self.waiting: dict[SiteQueue, list[DeliveryJob]] = {}
        self.at: dict[str, dict[SiteQueue, None]] = {}
        """Those of `waiting` by the destinations that they may use. Only of a spread mail."""
        self.open_at: list[OrderedDict[str, None]] = []
        """Those of `at` that are open, by trust, in the order of their jobs, but for one that opens
        while jobs wait, which is first: a connection to it may be idle. Only of a list."""
        self.at_work: dict[SiteQueue, int] = {}

    def become_list(self) -> None:
        """Let it be in the contest itself from now on."""
        self.is_list = True
        self.open_at = [OrderedDict() for _ in Trust]

    @property
    def is_over(self) -> bool:
        """True if it has no job left."""
        return not self.waiting and not self.working

    @property
    def claim(self) -> Rank:
        """Key that compares two mails where one waits for a connection that the other uses."""
        return (self.precedence, self.working)


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
    def rank(self) -> Rank:
        return self.first.rank


class SiteQueue:
    """The mails with jobs that wait for one site. `tier` is the last one that its jobs may use."""

    __slots__ = ("at_work", "locals", "mails", "number", "site", "spread", "tier")

    def __init__(self, number: int, site: Site) -> None:
        self.number = number
        self.site = site
        self.tier = 0
        self.at_work = 0
        self.mails: Ranking[MailShare] = Ranking()
        self.spread: dict[MailShare, None] = {}
        self.locals: dict[Precedence, Locals] = {}

    @property
    def names(self) -> list[str]:
        """The destinations that its jobs may use, each once, though it be in several tiers."""
        tiers = self.site.tiers[: self.tier + 1]
        return list(tiers[0]) if len(tiers) == 1 else list(dict.fromkeys(chain(*tiers)))


class Contenders:
    """The mails of one precedence that wait for one destination, but for lists; the first stands
    for them in the contest while the destination is open."""

    __slots__ = ("destination", "ranking")

    def __init__(self, destination: DestinationQueue) -> None:
        self.destination = destination
        self.ranking: Ranking[Locals | MailShare] = Ranking()

    @property
    def first(self) -> tuple[MailShare, SiteQueue]:
        """The first mail, with a site that it waits for. There is one, else this would not be in a
        contest."""
        first = self.ranking.first()
        assert first is not None
        if isinstance(first, Locals):
            return first.first, first.queue
        return first, next(iter(first.at[self.destination.name]))

    @property
    def working(self) -> int:
        """Number of jobs the first mail has at work."""
        return self.first[0].working

    @property
    def rank(self) -> Rank:
        """The rank of the first mail. Of several destinations that one mail is the first at, the
        one comes first that opened last: a connection to it may be idle."""
        return (*self.first[0].rank, -self.destination.opened)


class DestinationQueue:
    """Mails that wait for one destination. `opened`: counts when one opened while jobs waited."""

    __slots__ = ("contenders", "is_open", "lists", "name", "opened", "sites", "trust")

    def __init__(self, name: str, trust: Trust, *, is_open: bool) -> None:
        self.name = name
        self.trust = trust
        self.is_open = is_open
        self.opened = 0
        self.sites: Ranking[SiteQueue] = Ranking()
        self.contenders: dict[Precedence, Contenders] = {}
        self.lists: dict[MailShare, None] = {}
