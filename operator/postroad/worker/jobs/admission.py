"""Obstacles between jobs and the scheduler: suppressed recipients, suspensions, limits by rate, and
the quota of sites in trouble, which would fill the window of mails in flight.

A site is failing when all its destinations failed or take long. While the window is nearly full,
all such sites share an eighth of it.
Source: AMB-27; ADR 0062, 0064, 0070."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from postroad.domain.mail.mail import Outcome
from postroad.errors import PostroadError
from postroad.ports.clock import Clock
from postroad.telemetry.logs import logger
from postroad.worker.jobs.deliveries import ids_of
from postroad.worker.jobs.item_progress import ItemProgress
from postroad.worker.jobs.job_table import JobTable, OpenJob
from postroad.worker.route_finder import DeliveryRoute
from postroad.worker.sites.control import SiteControl
from postroad.worker.sites.rate_limiter import RateLimiter
from postroad.worker.sites.suppressing import Suppressing

PACED = "451 4.3.2 a limit by rate is used up"
UNSHARED = "451 4.3.2 a limit by rate cannot be shared, as the shared state of the queue is away"


class Passage(Enum):
    """Verdict on a job at the gate: it goes to the scheduler; `due` names it later; it has ended,
    and its recipients come again."""

    GOES = auto()
    HELD = auto()
    DEFERRED = auto()


GOES, HELD, DEFERRED = Passage


class AdmissionGate:
    """Lets jobs to the scheduler. `control`: which sites get no mail; None: all get theirs.
    `pacer`: what is under limits by rate; None: nothing is."""

    def __init__(
        self, clock: Clock, control: SiteControl | None = None, pacer: RateLimiter | None = None
    ) -> None:
        self._clock, self._control, self._pacer = clock, control, pacer

    def is_shut(
        self, ledger: ItemProgress, route: DeliveryRoute, recipients: tuple[str, ...]
    ) -> bool:
        """Return whether a site gets no mail now; its recipients are then deferred."""
        if self._control is None:
            return False
        if (suspension := self._control.suspended(route.name)) is None:
            return False
        until = self._clock.elapsed() + self._control.deferral_for(suspension)
        ledger.not_tried(recipients, f"451 4.3.2 suspended: {suspension.reason}", until)
        return True

    def admit(self, job: OpenJob) -> Passage:
        """Take a job under its limits by rate; one that is not to wait here for them is
        deferred."""
        if self._pacer is None:
            return GOES
        wait = self._pacer.admit(job.number, job.limited())
        if wait is None:
            return HELD
        if not wait:
            return GOES
        until = self._clock.elapsed() + wait
        reason = UNSHARED if self._pacer.is_away else PACED
        job.ledger.not_tried(job.recipients, reason, until, is_paced=True)
        return DEFERRED

    def drop(self, job: OpenJob) -> None:
        """Hold a job no longer. Idempotent."""
        if self._pacer is not None:
            self._pacer.drop(job.number)

    def due(self) -> Iterable[int]:
        """Return the jobs that were held, and go now."""
        return () if self._pacer is None else self._pacer.due()

    def on_outcomes(self, site: str, outcomes: Iterable[Outcome]) -> None:
        """Look at what a transmission to a site came to: its replies may suspend it."""
        if self._control is not None:
            self._control.on_outcomes(site, outcomes)

    def suspended_since(self) -> Iterable[str]:
        """Return the sites that were suspended since this was called last."""
        return () if self._control is None else self._control.new()


def is_nearly_full(in_flight: int, window: int) -> bool:
    """Return whether so many mails in flight leave few places to others."""
    return 4 * in_flight >= 3 * window


@dataclass(slots=True)
class FailingSiteQuota:
    """Limit on what failing sites may have in flight: so many jobs `each`, and so many more that
    wait, of all these sites, are `left`."""

    each: int
    left: int

    def takes(self, jobs_before: int) -> bool:
        """Take a job that waits, of a site with so many jobs before it; return whether there is
        room for it."""
        has_room = jobs_before < self.each and self.left > 0
        self.left -= has_room
        return has_room


def failing_site_quota(window: int, sites: int) -> FailingSiteQuota:
    """Return an eighth of the window, shared evenly by so many sites.

    >>> failing_site_quota(900, sites=10).each, failing_site_quota(900, sites=1000).each
    (11, 1)
    """
    room = max(1, window // 8)
    return FailingSiteQuota(max(1, room // sites), room)


class InFlightLimit:
    """The jobs of failing sites. `window`: how many mails may be in flight; None: all of them
    have one next hop. `is_failing` returns whether a destination failed or takes long."""

    def __init__(
        self, window: int | None, jobs: JobTable, is_failing: Callable[[str], bool]
    ) -> None:
        self._window, self._jobs, self._is_failing = window, jobs, is_failing
        self._room: FailingSiteQuota | None = None

    def surplus(self, in_flight: int) -> list[OpenJob]:
        """Return the jobs that wait and have no room, while so many mails are in flight: the last
        ones. What is found out holds until this is called again."""
        self._room = None
        if self._window is None or not is_nearly_full(in_flight, self._window):
            return []
        failing = [each for each in self._jobs.by_site() if self._is_failing_site(each[0].route)]
        if not failing:
            return []
        room = self._room = failing_site_quota(self._window, len(failing))
        return [
            job
            for jobs in failing
            for before, job in enumerate(jobs)
            if job.connection is None and not room.takes(before)
        ]

    def has_room(self, route: DeliveryRoute) -> bool:
        """Return whether one more job may wait; a job that may not is deferred at once."""
        if self._room is None or not self._is_failing_site(route):
            return True
        return self._room.takes(self._jobs.count_at(route.name))

    def _is_failing_site(self, route: DeliveryRoute) -> bool:
        return all(map(self._is_failing, route.hops))


_log = logger("worker")

UNREADABLE = "451 4.3.0 the suppression list cannot be read"


class Screening:
    """The items whose recipients are looked for, under the `numbers` that jobs have too.
    `on_screened` gets those that are left. Needs a running event loop."""

    def __init__(
        self,
        queue: str,
        suppressing: Suppressing,
        numbers: Iterator[int],
        on_screened: Callable[[ItemProgress, Sequence[str]], None],
    ) -> None:
        self._queue, self._suppressing = queue, suppressing
        self._numbers, self._on_screened = numbers, on_screened
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_on(self) -> bool:
        """True if there is a list to look at."""
        return self._suppressing.rules is not None

    def begin(self, ledger: ItemProgress) -> None:
        """Look for the recipients of an item. Returns at once."""
        number = next(self._numbers)
        ledger.open_jobs.add(number)
        task = asyncio.get_running_loop().create_task(self._screen(ledger, number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Break off what is under way."""
        for task in self._tasks:
            task.cancel()

    async def _screen(self, ledger: ItemProgress, number: int) -> None:
        envelope = ledger.item.mail
        try:
            outcomes = await self._suppressing.find(envelope)
        except Exception as error:  # mail to who asked for none is worse than mail that waits
            text = error.explain() if isinstance(error, PostroadError) else repr(error)
            _log.warning(UNREADABLE, **ids_of(self._queue, ledger.item), error=text)
            ledger.open_jobs.discard(number)
            ledger.not_tried(envelope.recipients, UNREADABLE)
            ledger.go_on()
            return
        ledger.open_jobs.discard(number)
        if ledger.is_over:
            return
        if outcomes:
            ledger.on_outcomes(outcomes)
        self._on_screened(ledger, [each for each in envelope.recipients if each not in outcomes])
