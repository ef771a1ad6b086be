"""A world of destinations around the scheduler, on a clock of its own: the scheduler that workers
use, with connections that transmit their jobs one after the other."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from postroad.scheduling.events import (
    Assign,
    BackOff,
    CloseConnection,
    Closed,
    Defer,
    DeliveryJob,
    Established,
    Event,
    Finished,
    NotOpened,
    OpenConnection,
    Site,
    Submitted,
    Tick,
)
from postroad.scheduling.ranking import SchedulerRules
from postroad.scheduling.scheduler import Scheduler


@dataclass
class Line:
    """A connection as the world has it."""

    number: int
    destination: str
    jobs: list[int]
    is_established: bool = False
    closed_at: float = float("inf")


@dataclass(frozen=True)
class Opening:
    """What happened to a connection that was opened."""

    at: float
    destination: str


class Simulation:
    """Events in the order of their instants, until none is left or the time is over.

    `connect` returns the seconds until a destination answers, or None for one that is broken and
    refuses after `refusal` seconds; where a connection has less time, that ends it.
    """

    def __init__(
        self,
        rules: SchedulerRules,
        *,
        seed: int = 0,
        connect: Callable[[str], float | None] = lambda _: 0.0,
        refusal: float = 0.0,
    ) -> None:
        self.random = random.Random(seed)
        self.scheduler = Scheduler(rules, self.random.randrange)
        self.connect, self.refusal = connect, refusal
        self.now = 0.0
        self.lines: dict[int, Line] = {}
        self.line_of: dict[int, Line] = {}
        self.seconds: dict[int, float] = {}
        self.jobs: dict[int, DeliveryJob] = {}
        self.submitted_at: dict[int, float] = {}
        self.finished_at: dict[int, float] = {}
        self.finishes = 0
        self.working: Counter[str | None] = Counter()
        self.deferred: list[Defer] = []
        self.backoffs: list[BackOff] = []
        self.openings: list[Opening] = []
        self.closings: list[Line] = []
        self.peer_closed: list[Line] = []
        self.on_event: Callable[[Event], None] = lambda _: None
        self._events: list[tuple[float, int, Event]] = []
        self._order = count()
        self._numbers = count(1)

    def submit(
        self,
        mail: str | None,
        site: Site,
        *,
        at: float = 0.0,
        seconds: float = 1.0,
        priority: int = 0,
    ) -> int:
        """Submit a job at an instant; return its number."""
        job = DeliveryJob(next(self._numbers), mail, site, priority)
        self.jobs[job.number], self.seconds[job.number] = job, seconds
        self.submitted_at[job.number] = at
        self.at(at, Submitted(job))
        return job.number

    def at(self, moment: float, event: Event) -> None:
        """Let an event happen."""
        heapq.heappush(self._events, (moment, next(self._order), event))

    def run(self, until: float = float("inf")) -> None:
        """Let everything happen up to an instant; records are forgotten only if it is given."""
        while self._events and self._events[0][0] <= until:
            moment, _, event = self._events[0]
            due = self.scheduler.next_moment()
            if due is not None and due < moment:
                self._hear(Tick(), max(due, self.now))
                continue
            heapq.heappop(self._events)
            if self._is_real(event):
                self._hear(event, moment)
        while until != float("inf") and (due := self.scheduler.next_moment()) is not None:
            if due > until:
                break
            self._hear(Tick(), max(due, self.now))
        if until != float("inf"):
            self.now = until

    def close(self, number: int) -> None:
        """Let the peer close a connection now."""
        line = self.lines.pop(number)
        self.peer_closed.append(line)
        self._drop(line)
        self._hear(Closed(number), self.now)

    def _drop(self, line: Line) -> None:
        for job in line.jobs:
            del self.line_of[job]
            self.working[self.jobs[job].mail] -= 1

    def _is_real(self, event: Event) -> bool:
        """What was under way on a connection that is closed does not happen."""
        match event:
            case Finished(job):
                line = self.line_of.get(job)
                return line is not None and line.jobs[:1] == [job] and job in self._begun(line)
            case Established(number) | NotOpened(number):
                return number in self.lines
        return True

    def _begun(self, line: Line) -> set[int]:
        return {line.jobs[0]} if line.jobs and line.is_established else set()

    def _hear(self, event: Event, moment: float) -> None:
        self.now = moment
        match event:
            case Finished(job):
                line = self.line_of.pop(job)
                line.jobs.remove(job)
                self.working[self.jobs[job].mail] -= 1
                self.finishes += 1
                self.finished_at[job] = moment
                self._begin(line)
            case Established(number):
                line = self.lines[number]
                line.is_established = True
                self._begin(line)
            case NotOpened(number):
                self._drop(self.lines.pop(number))
        for decision in self.scheduler.on(event, moment):
            self._do(decision)
        self.on_event(event)

    def _begin(self, line: Line) -> None:
        if line.jobs and line.is_established:
            self.at(self.now + self.seconds[line.jobs[0]], Finished(line.jobs[0]))

    def _do(self, decision: object) -> None:
        match decision:
            case OpenConnection(number, destination, within):
                line = self.lines[number] = Line(number, destination, [])
                self.openings.append(Opening(self.now, destination))
                wait = self.connect(destination)
                took = self.refusal if wait is None else wait
                if within is not None and took > within:
                    wait, took = None, within
                answer = NotOpened(number) if wait is None else Established(number)
                self.at(self.now + took, answer)
                assert line.number == number
            case Assign(job, number):
                line = self.lines[number]
                assert job not in self.line_of, "a job is on two connections"
                line.jobs.append(job)
                self.line_of[job] = line
                self.working[self.jobs[job].mail] += 1
                if len(line.jobs) == 1:
                    self._begin(line)
            case CloseConnection(number):
                line = self.lines.pop(number)
                assert not line.jobs, "a connection with jobs is closed"
                line.closed_at = self.now
                self.closings.append(line)
            case Defer(job, until):
                self.deferred.append(decision)
                self.at(until, Submitted(self.jobs[job]))
            case BackOff():
                self.backoffs.append(decision)
