"""Chooses the address that is looked up next. Routers are all alike, and so are the addresses of a
mail.

Source: SC-1, SC-2, SC-9, SC-26; AMB-14."""

from itertools import count

from postroad.scheduling.events import LookupJob, Precedence, precedence_of
from postroad.scheduling.ranking import Contest, SchedulerRules, Share


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
            each: Contest(rules.order, rules.limits[each]) for each in Precedence
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
