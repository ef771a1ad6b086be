"""The worker's loop: dequeues what is due, has it delivered, and drains. What happens becomes
events of the scheduler, its decisions are passed on to connections and lookups. The only clock of
the scheduler.

Nothing here waits: connections, lookups and ledgers have tasks of their own, and a tick a second
lets time pass. Source: ADR 0036, 0038."""

import asyncio
import heapq
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing
from datetime import timedelta
from itertools import count
from typing import cast

from postroad.domain.delivery.retries import RetryRule
from postroad.domain.delivery.sites import SiteView
from postroad.domain.mail.mail import Outcome
from postroad.ports.clock import Randomness
from postroad.ports.delivery import Connector
from postroad.ports.mail_queue import Item, MailQueue
from postroad.scheduling.events import (
    Assign,
    BackOff,
    BackoffCleared,
    CloseConnection,
    Decision,
    Defer,
    Event,
    OpenConnection,
    StartLookup,
    Submitted,
    Tick,
    Withdrawn,
)
from postroad.scheduling.ranking import LimitsOf, SchedulerRules, usual_limits
from postroad.scheduling.scheduler import Scheduler
from postroad.telemetry.logs import logger
from postroad.worker.jobs.admission import (
    DEFERRED,
    GOES,
    AdmissionGate,
    InFlightLimit,
    Screening,
)
from postroad.worker.jobs.deliveries import Deliverer, ids_of
from postroad.worker.jobs.item_progress import ItemProgress
from postroad.worker.jobs.job_table import JobTable, OpenJob, Withdrawals, chunks_of
from postroad.worker.jobs.route_lookups import RouteLookups
from postroad.worker.jobs.site_book import SiteBook, shown_reply
from postroad.worker.jobs.transmissions import ENDING, NO_TIME_LEFT, Deferrals, Transmissions
from postroad.worker.route_finder import DeliveryRoute, Routes
from postroad.worker.sites.suppressing import Suppressing

_log = logger("worker")

TICK = timedelta(seconds=1)
"""Between two looks at what time alone changes: backoffs, ages of connections, deadlines."""

SHORT_BACKOFF = timedelta(seconds=20)
"""A job whose site backs off for no longer stays in flight: to defer a mail costs as much as to
enqueue one, and a next hop that restarts has its mail at once."""

PATIENCE = timedelta(seconds=30)
"""Time that a mail waits for a place on a connection, or for a router, while it keeps others from
being seen."""

MAX_GOODBYE = timedelta(seconds=2)
"""At the end, for what was answered to be recorded, and again for connections to close: a pod has
30 seconds, of which `drain_seconds` are 25."""

NO_PLACE = "451 4.4.5 other mail has all connections that the next hop is given"
NO_ROUTER = "451 4.4.3 other mail has all lookups of routes that are made at a time"
FAILING = "451 4.4.1 the next hop fails or takes long, and other mail is to go out beside it"
BACKED_OFF = "451 4.4.1 the next hop is in backoff after failures"


class SchedulerRunner:
    """Delivers the items that it is given. Needs an event loop.  `window`: how many items may be in
    flight; while they are, mails that wait long for a place on a connection are deferred, so that
    others are seen, and before that those of failing sites. None: no mail is, since all have one
    next hop. `gate`: what keeps jobs from the scheduler; None: nothing does. `suppressing`: which
    recipients are not mailed; None: all are."""

    def __init__(
        self,
        deliverer: Deliverer,
        connector: Connector,
        routes: Routes,
        rules: SchedulerRules,
        randomness: Randomness,
        *,
        window: int | None = None,
        gate: AdmissionGate | None = None,
        suppressing: Suppressing | None = None,
    ) -> None:
        self._gate = gate or AdmissionGate(deliverer.clock)
        self._book = SiteBook()
        self._deliverer = deliverer
        self._window = window
        self._limits_of: LimitsOf | None = None
        self._scheduler = Scheduler(rules, lambda n: int(randomness.uniform() * n))
        self._ledgers: dict[ItemProgress, str] = {}
        """Each with the scheduler's name of its mail."""
        self._jobs = JobTable()
        self._in_flight_limit = InFlightLimit(
            window, self._jobs, lambda name: self._scheduler.look_at(name).is_failing
        )
        self._numbers = count(1)
        self._lookups = RouteLookups(routes, self._numbers, self._on, self._submit)
        self._screening = None
        if suppressing is not None:
            self._screening = Screening(deliverer.queue, suppressing, self._numbers, self._screened)
        self._withdrawals = Withdrawals(self._jobs, self._lookups, self._withdrawn)
        self._deferrals = Deferrals()
        self._transmissions = Transmissions(
            deliverer,
            connector,
            self._jobs,
            self._withdrawals,
            self._deferrals,
            on_event=self._on,
            on_replied=self._replied,
            on_left=self._submit,
        )
        self._links = self._transmissions.links
        self._backing_off: list[tuple[timedelta, int]] = []
        """Jobs of sites that rest for a short time, by when that ends."""
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ledgers)

    # Items

    def take(self, item: Item) -> None:
        """Begin to deliver an item. Returns at once."""
        ledger = ItemProgress(item, self._deliverer, self._over)
        self._ledgers[ledger] = str(next(self._numbers))
        if self._screening is not None and self._screening.is_on:
            self._screening.begin(ledger)
        else:
            self._take(ledger, item.mail.recipients)

    def _screened(self, ledger: ItemProgress, left: Sequence[str]) -> None:
        if self._transmissions.is_ending:
            ledger.not_tried(left, ENDING)
            ledger.go_on()
        else:
            self._take(ledger, left)

    def limit(self, limits_of: LimitsOf | None) -> bool:
        """Limit the connections of destinations from now on; return whether that is another limit.
        None: all have the usual ones."""
        is_other = limits_of != self._limits_of
        self._limits_of = self._transmissions.limits_of = limits_of
        self._scheduler.limit(limits_of or usual_limits)
        return is_other

    def retry(self, rules: Sequence[RetryRule]) -> None:
        """Let recipients whose routes are found from now on be tried again by these rules."""
        self._lookups.retries = rules

    def route_again(self) -> None:
        """Find the routes of all that waits anew: they may be others now. What connections have,
        goes as it was routed."""
        for ledger in list(self._ledgers):
            if dropped := self._withdrawals.drop_waiting(ledger):
                self._take(ledger, dropped)

    def _take(self, ledger: ItemProgress, to: Iterable[str]) -> None:
        try:
            self._lookups.route(ledger, self._ledgers[ledger], to)
        except Exception:
            ids = ids_of(self._deliverer.queue, ledger.item)
            _log.exception("unexpected error in an item", **ids)
            self._withdrawals.put_aside(ledger)
        ledger.go_on()

    def _over(self, ledger: ItemProgress) -> None:
        del self._ledgers[ledger]
        self._withdrawals.drop_waiting(ledger)
        self._changed.set()

    # Jobs

    def _submit(
        self, ledger: ItemProgress, route: DeliveryRoute, recipients: tuple[str, ...]
    ) -> None:
        self._book.seen(route, recipients)
        if self._gate.is_shut(ledger, route, recipients):
            return
        most = route.most_recipients(ledger.item.mail.sender, self._limits_of)
        for by, together in self._deferrals.routes(ledger.item.mail_id, route, recipients):
            for each in chunks_of(together, most):
                self._submit_job(ledger, by, each)

    def _submit_job(
        self, ledger: ItemProgress, route: DeliveryRoute, recipients: tuple[str, ...]
    ) -> None:
        if not self._in_flight_limit.has_room(route):
            ledger.not_tried(recipients, FAILING)
            return
        job = OpenJob(next(self._numbers), self._ledgers[ledger], ledger, route, recipients)
        passage = self._gate.admit(job)
        if passage is not DEFERRED:
            self._jobs.add(job)  # before the event: the decision on it looks the job up
        if passage is GOES:
            self._on(Submitted(job.scheduled))

    def _withdrawn(self, job: OpenJob) -> None:
        self._gate.drop(job)
        self._on(Withdrawn(job.scheduled))

    def _replied(self, site: str, outcomes: Collection[Outcome]) -> None:
        self._book.replied(site, outcomes, self._deliverer.clock.now())
        self._gate.on_outcomes(site, outcomes)

    def _suspend(self, site: str) -> None:
        """Take back the jobs for a site that no connection has."""
        for job in self._jobs:
            if (
                job.route.name == site
                and job.connection is None
                and self._gate.is_shut(job.ledger, job.route, job.recipients)
            ):
                self._withdrawals.withdraw(job)
                job.ledger.go_on()

    def try_now(self, site: str) -> list[str]:
        """Try a site as if it had never failed; return the domains whose mail goes there, as far as
        this worker knows. What is in flight and waits for a backoff goes at once."""
        for name in self._book.destinations(site):
            self._on(BackoffCleared(name))
        backing_off = self._backing_off
        self._backing_off = [each for each in backing_off if not self._is_at(each[1], site)]
        heapq.heapify(self._backing_off)
        for _, number in backing_off:
            if self._is_at(number, site):
                self._resubmit(number)
        return self._book.domains(site)

    def _is_at(self, number: int, site: str) -> bool:
        job = self._jobs.get(number)
        return job is not None and job.route.name == site

    def sites(self) -> Iterator[SiteView]:
        clock = self._deliverer.clock
        now = clock.now(), clock.elapsed()
        return self._book.views(self._jobs, self._scheduler.look_at, self._links.reason, now)

    def _on(self, event: Event) -> None:
        """Let the scheduler decide, and carry it out. No decision leads to an event at once."""
        now = self._deliverer.clock.elapsed()
        for decision in self._scheduler.on(event, now.total_seconds()):
            self._carry_out(decision, now)

    def _carry_out(self, decision: Decision, now: timedelta) -> None:
        match decision:
            case Assign(number, connection):
                self._transmissions.assign(self._jobs[number], connection, now)
            case OpenConnection():
                self._transmissions.expect(decision)
            case CloseConnection(number):
                self._links.close(number)
            case Defer(number, until):
                self._defer(self._jobs[number], timedelta(seconds=until), now)
            case StartLookup(number):
                self._lookups.begin(number)
            case BackOff(destination, _):
                reason = shown_reply(self._links.reason((destination,)) or BACKED_OFF)
                queue = self._deliverer.queue
                _log.info("next hop backed off", queue=queue, next_hop=destination, reason=reason)

    def _defer(self, job: OpenJob, until: timedelta, now: timedelta) -> None:
        """The site of a job backs off."""
        job.connection = None
        job.backoff_since = job.backoff_since or now
        is_over = self._transmissions.is_ending or job.ledger.is_over
        if until <= job.backoff_since + SHORT_BACKOFF and not is_over:
            heapq.heappush(self._backing_off, (until, job.number))
            self._transmissions.save_memory(job.ledger)
            return
        self._jobs.forget(job)
        reason = self._links.reason(job.route.hops) or BACKED_OFF
        job.ledger.not_tried(job.recipients, reason, until)
        job.ledger.go_on()

    # Time

    async def run(self) -> None:
        """Let time pass, until cancelled."""
        while True:
            await self._deliverer.clock.sleep(TICK)
            self._pass_time()

    def _pass_time(self) -> None:
        now = self._deliverer.clock.elapsed()
        self._transmissions.note_blocked()
        moment = self._scheduler.next_moment()
        if moment is not None and moment <= now.total_seconds():
            self._on(Tick())
        for site in self._gate.suspended_since():
            self._suspend(site)
        for number in self._gate.due():
            self._resubmit(number)
        while self._backing_off and self._backing_off[0][0] <= now:
            self._resubmit(heapq.heappop(self._backing_off)[1])
        if late := [each for each in self._ledgers if each.is_late(now)]:
            self._end_late(late)
        for job in self._in_flight_limit.surplus(len(self._ledgers)):
            if job.connection is None:  # else it has the place that one before it has left
                self._withdrawals.withdraw(job)
                job.ledger.not_tried(job.recipients, FAILING)
                job.ledger.go_on()
        if self._window is not None and len(self._ledgers) >= self._window:
            self._make_room(now)

    def _resubmit(self, number: int) -> None:
        """Submit a job to the scheduler, unless it was taken back meanwhile."""
        if (job := self._jobs.get(number)) is not None:
            self._on(Submitted(job.scheduled))

    def _end_late(self, late: Sequence[ItemProgress]) -> None:
        """Take back the jobs of items whose leases are over, and break off what connections have of
        them."""
        for ledger in late:
            self._withdrawals.take_back(ledger, NO_TIME_LEFT)
        self._transmissions.break_off(late)

    def _make_room(self, now: timedelta) -> None:
        """Defer mails that have waited in vain for long, where they are more than a quarter of
        what is in flight; the last ones of them."""
        waiting = [
            each
            for each in self._ledgers
            if now - each.begun >= PATIENCE and self._only_waits(each)
        ]
        for ledger in waiting[len(self._ledgers) // 4 :]:
            reason = NO_PLACE if self._jobs.waiting(ledger) else NO_ROUTER
            self._withdrawals.take_back(ledger, reason)

    def _only_waits(self, ledger: ItemProgress) -> bool:
        """True if all that is open of an item waits for a connection or a router."""
        waiting = self._jobs.waiting(ledger) + self._lookups.waiting(ledger)
        return waiting == len(ledger.open_jobs)

    # The end

    async def end(self, within: timedelta) -> None:
        """Finish what connections transmit, for so long at most, and close them. What waits, also
        behind another mail on a connection, and what takes longer, stays leased, and comes again
        when the queue is closed."""
        self._transmissions.finish()  # first: the loop frees places, and other jobs would get them
        for ledger in list(self._ledgers):
            ledger.is_cut_off = True  # else recipients that were not tried wait for a retry
            self._withdrawals.take_back(ledger, ENDING)
        try:
            async with asyncio.timeout(within.total_seconds()):
                await self.until_empty()
        except TimeoutError:
            _log.warning(
                "deliveries cut off", queue=self._deliverer.queue, count=len(self._ledgers)
            )
        self._transmissions.abort_all()
        try:  # what the next hops answered until now is recorded
            async with asyncio.timeout(min(within, MAX_GOODBYE).total_seconds()):
                await self.until_empty()
        except TimeoutError:
            pass
        for ledger in list(self._ledgers):  # behind the wait: what is not recorded is sent again
            ledger.cancel()
        self._lookups.cancel()
        if self._screening is not None:
            self._screening.cancel()
        await self._links.close_all(MAX_GOODBYE.total_seconds())

    async def until_empty(self) -> None:
        """Wait until no item is in flight."""
        while self._ledgers:
            self._changed.clear()  # no `await` since the look: an item that ends then wakes no one
            await self._changed.wait()


class Consumer:
    """Delivers what a queue has, until `stop` is set. At most `window` mails are in flight."""

    def __init__(self, queue: MailQueue, driving: SchedulerRunner, *, window: int) -> None:
        self._queue = queue
        self._driving = driving
        self._window = window

    async def run(self, stop: asyncio.Event, within: timedelta) -> None:
        """Deliver until `stop` is set; then dequeue no more, and finish what connections have. What
        takes longer than `within` is cut off; mails that were not delivered stay leased and are
        redelivered once the queue is closed. Raises: what `dequeue` raises."""
        consuming = asyncio.create_task(self._consume(), name="dequeue")
        passing = asyncio.create_task(self._driving.run(), name="pass time")
        stopping = asyncio.create_task(stop.wait(), name="wait for stop")
        try:
            await asyncio.wait((consuming, passing, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            # Before the end, which takes back what is in flight: a later item would wait for a
            # retry.
            consuming.cancel()
            ended = [*await asyncio.gather(consuming, return_exceptions=True)]
            if len(self._driving):
                _log.info("draining", queue=self._queue.name, count=len(self._driving))
            await self._driving.end(within)
            passing.cancel()  # behind the end, in which leases and backoffs still run out
            ended += await asyncio.gather(passing, return_exceptions=True)
        for each in ended:
            if isinstance(each, Exception):
                raise each

    async def _consume(self) -> None:
        # No semaphore here: the queue leases at most `prefetch` items that have not ended.
        items = cast("AsyncGenerator[Item, None]", self._queue.dequeue(prefetch=self._window))
        async with aclosing(items):
            async for item in items:
                self._driving.take(item)
