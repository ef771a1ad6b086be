"""Mail for healthy sites beside mail for sites that are dead or slow, in a worker with a window:
how much of it goes out in the same time, as a share of what goes out without them. Source: AMB-27.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.results import Result, compared
from postroad.scheduling.events import Defer, Event, OpenConnection, Site, Submitted, Withdrawn
from postroad.scheduling.ranking import SchedulerRules
from postroad.worker.jobs.admission import FailingSiteQuota, failing_site_quota, is_nearly_full
from support.simulated_delivery import Simulation

SEEDS = (1, 2, 3)

CONNECTIONS, PER_DESTINATION, WINDOW = 50, 5, 225
"""A quarter of what a worker has."""

REFUSAL, NO_GREETING = 30.0, 300.0
"""Seconds until a connection to a dead site is given up: which is not accepted, or not greeted."""

RULES = SchedulerRules(connections=CONNECTIONS, per_destination=PER_DESTINATION)
WITHOUT_BOUNDS = replace(
    RULES, least_for_new=1.0, least_for_failing=1.0, first_connect=REFUSAL, overdue_share=0.0
)

STEP, SHORT_BACKOFF, PATIENCE, DEFERRED = 0.5, 20.0, 30.0, 300.0
"""A worker's, in seconds: `worker/runner.py`, and the second lane."""

SLOW_SECONDS, SECONDS = 20.0, 1.0
"""What a mail takes at a slow site, and at a healthy one."""


@dataclass(frozen=True)
class World:
    """Of ten sites three are dead, one is slow, and six are healthy; each mail is for one of them
    at random. `rate`: mails a second for healthy sites; None: as many as go out. What goes out
    before `counted_from`, in seconds, while the worker learns of each site, is not counted.
    `is_mute`: dead ones accept connections, and never greet."""

    sites: int
    rate: float | None
    counted_from: float
    is_mute: bool = False

    @property
    def name(self) -> str:
        load = "as many as go out" if self.rate is None else f"{self.rate:g} offered a second"
        dead = ", the dead ones mute" if self.is_mute else ""
        return f"{self.sites} sites, {load}, after {self.counted_from:g} s{dead}"

    @property
    def dead(self) -> range:
        return range(self.sites * 3 // 10)

    @property
    def slow(self) -> range:
        return range(self.sites * 3 // 10, self.sites * 4 // 10)

    @property
    def healthy(self) -> range:
        return range(self.sites * 4 // 10, self.sites)


WORLDS = (
    World(20, None, counted_from=60),
    World(100, None, counted_from=60),
    World(100, 30, counted_from=60),
    World(1000, None, counted_from=60),
    World(1000, None, counted_from=420),
    World(1000, 30, counted_from=420),
    World(1000, None, counted_from=0),
    World(100, None, counted_from=60, is_mute=True),
    World(1000, None, counted_from=60, is_mute=True),
)
COUNTED = 300.0


def measure() -> list[Result]:
    """Return rows for each world: with the bounds of the scheduler and of the window, without."""
    return [row for world in WORLDS for row in _rows(world)]


def _rows(world: World) -> list[Result]:
    def rates(*, alone: bool, is_bounded: bool) -> list[float]:
        found = []
        for seed in SEEDS:
            worker = Worker(world, seed, alone=alone, is_bounded=is_bounded)
            worker.work()
            found.append(worker.delivered() / COUNTED)
        return found

    alone = rates(alone=True, is_bounded=True)
    return [
        compared(f"healthy mails out, {how}", world.name, "mails/s",
                 rates(alone=False, is_bounded=is_bounded), "without dead and slow", alone)
        for how, is_bounded in (("bounded", True), ("unbounded", False))
    ]  # fmt: skip


class Worker(Simulation):
    """The scheduler with a window of mails, each with one recipient; mails beyond it wait in the
    queue in the order in which they came."""

    def __init__(
        self, world: World, seed: int, *, alone: bool = False, is_bounded: bool = True
    ) -> None:
        rules = RULES if is_bounded else WITHOUT_BOUNDS
        refusal = NO_GREETING if world.is_mute else REFUSAL
        super().__init__(rules, seed=seed, connect=self._answer, refusal=refusal)
        self._world, self._is_bounded = world, is_bounded
        self._chosen: Sequence[int] = world.healthy if alone else range(world.sites)
        self._mails = random.Random(seed)
        share = len(self._chosen) / len(world.healthy)
        self._rate = None if world.rate is None else world.rate * share
        self._next = 0.0
        self._queued: deque[tuple[int, float]] = deque()
        self._later: deque[tuple[float, int, float]] = deque()
        self._waits: dict[int, float] = {}
        self._in_flight: dict[int, None] = {}
        self._jobs_at: Counter[int] = Counter()
        self._room: FailingSiteQuota | None = None
        self._site_of: dict[int, int] = {}

    def _answer(self, name: str) -> float | None:
        return None if int(name) in self._world.dead else 0.2

    def delivered(self) -> int:
        """Return how many mails went out to healthy sites while it was counted."""
        return sum(
            at >= self._world.counted_from and self._site_of[job] in self._world.healthy
            for job, at in self.finished_at.items()
        )

    def work(self) -> None:
        """Let all of the time pass."""
        while self.now < self._world.counted_from + COUNTED:
            self._arrive()
            for number in [each for each in self._in_flight if each in self.finished_at]:
                self._leave_hand(number)
            self._make_room()
            while len(self._in_flight) < WINDOW and (mail := self._mail()) is not None:
                self._take(*mail)
            self.run(self.now + STEP)

    def _arrive(self) -> None:
        while self._rate is not None and self._next <= self.now:
            self._queued.append((self._mails.choice(self._chosen), self._next))
            self._next += self._mails.expovariate(self._rate)
        while self._later and self._later[0][0] <= self.now:
            _, site, arrived = self._later.popleft()
            self._queued.append((site, arrived))

    def _mail(self) -> tuple[int, float] | None:
        if self._queued:
            return self._queued.popleft()
        return (self._mails.choice(self._chosen), self.now) if self._rate is None else None

    def _take(self, site: int, arrived: float) -> None:
        room = self._room if self._is_failing(site) else None
        if room is not None and not room.takes(self._jobs_at[site]):
            self._later.append((self.now + DEFERRED, site, arrived))
            return
        seconds = SLOW_SECONDS if site in self._world.slow else SECONDS
        number = self.submit(
            f"m{len(self.jobs)}", Site(((str(site),),)), at=self.now, seconds=seconds
        )
        self.submitted_at[number] = arrived
        self._site_of[number] = site
        self._in_flight[number] = None
        self._jobs_at[site] += 1
        self._waits[number] = self.now

    def _is_failing(self, site: int) -> bool:
        return self.scheduler.look_at(str(site)).is_failing

    def _make_room(self) -> None:
        """As `SchedulerRunner` does it."""
        self._room = None
        if self._is_bounded and is_nearly_full(len(self._in_flight), WINDOW):
            self._leave_room_beside_trouble()
        if len(self._in_flight) >= WINDOW:
            waiting = [
                each
                for each in self._in_flight
                if each not in self.line_of and self.now - self._waits[each] >= PATIENCE
            ]
            for number in waiting[len(self._in_flight) // 4 :]:
                self._take_back(number)

    def _leave_room_beside_trouble(self) -> None:
        failing = {site for site, jobs in self._jobs_at.items() if jobs and self._is_failing(site)}
        if not failing:
            return
        room = self._room = failing_site_quota(WINDOW, len(failing))
        at: Counter[int] = Counter()
        for number in list(self._in_flight):
            if (site := self._site_of[number]) in failing:
                if number not in self.line_of and not room.takes(at[site]):
                    self._take_back(number)
                at[site] += 1

    def _take_back(self, number: int) -> None:
        self._hear(Withdrawn(self.jobs[number]), self.now)
        self._drop_job(number)

    def _drop_job(self, number: int) -> None:
        self._leave_hand(number)
        site, arrived = self._site_of[number], self.submitted_at[number]
        self._later.append((self.now + DEFERRED, site, arrived))

    def _leave_hand(self, number: int) -> None:
        del self._in_flight[number]
        self._jobs_at[self._site_of[number]] -= 1

    def _is_real(self, event: Event) -> bool:
        """A job that was deferred while its site rested does not come."""
        if isinstance(event, Submitted):
            return event.job.number in self._in_flight
        return super()._is_real(event)

    def _do(self, decision: object) -> None:
        match decision:
            case OpenConnection(_, _, within) if within is not None and self._world.is_mute:
                super()._do(replace(decision, within=2 * within))
            case Defer(job, until):
                if job not in self._in_flight:
                    return
                if until <= self.now + SHORT_BACKOFF:
                    self.at(until, Submitted(self.jobs[job]))
                else:
                    self._drop_job(job)
            case _:
                super()._do(decision)
