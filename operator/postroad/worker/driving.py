"""Delivers items by the scheduler: its decisions are carried out here, what happens becomes its
events. The only clock of the scheduler.

Nothing here waits: connections, look-ups and ledgers have tasks of their own, and a tick a second
lets time pass. Source: ADR 0036, 0038.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count

from postroad.domain.mail import Outcome, domain_of
from postroad.domain.site_views import SiteView
from postroad.errors import BlobMissing, EntryEnded, EntryLost, QueueClosed
from postroad.ports.clock import Randomness
from postroad.ports.connections import (
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    Connector,
    ContentFailed,
    JobFinished,
)
from postroad.ports.mail_queue import Item
from postroad.routing.routes import NoRoute
from postroad.routing.tables import RouteRequest
from postroad.scheduling.events import (
    Assign,
    CloseConnection,
    Closed,
    Decision,
    Established,
    Event,
    Finished,
    LeftAlone,
    LookUp,
    NotOpened,
    OpenConnection,
    PutOff,
    Rest,
    Submitted,
    Tick,
    Withdrawn,
)
from postroad.scheduling.jobs import RoutingJob, Site
from postroad.scheduling.rules import SchedulerRules
from postroad.scheduling.scheduler import Scheduler
from postroad.telemetry.logs import logger
from postroad.worker.deliveries import UNFORESEEN, Deliverer, ids_of
from postroad.worker.gate import Gate, Passage
from postroad.worker.job_table import JobTable
from postroad.worker.ledger import Ledger
from postroad.worker.links import Link, Links
from postroad.worker.look_ups import LookUps
from postroad.worker.open_jobs import LeaseOver, OpenJob, chunks_of, deferred_by
from postroad.worker.routing import DeliveryRoute, Routes
from postroad.worker.site_book import SiteBook

_log = logger("worker")

TICK = timedelta(seconds=1)
"""Between two looks at what time alone changes: rests, ages of connections, deadlines."""

SHORT_REST = timedelta(seconds=20)
"""A job whose site rests for no longer stays in hand: to put a mail off costs as much as to enqueue
one, and a next hop that restarts has its mail at once."""

PATIENCE = timedelta(seconds=30)
"""How long a mail waits for a place on a connection, or for a router, while it keeps others from
being seen."""

KEPT_WHILE_WAITING = 64 * 1024
"""Octets of the largest content that stays in memory while no connection has its mail: as many as
the window are in hand, and a pod has 512 MiB."""

LONGEST_GOODBYE = timedelta(seconds=2)
"""At the end, for what was answered to be recorded, and again for connections to close: a pod has
30 seconds, of which `drain_seconds` are 25."""

NO_TIME_LEFT = "451 4.4.2 the next hop took too long over other recipients or other mail"
NO_PLACE = "451 4.4.5 other mail has all connections that the next hop is given"
NO_ROUTER = "451 4.4.3 other mail has all look-ups of routes that are made at a time"
RESTS = "451 4.4.1 the next hop rests after failures"
ENDING = "451 4.3.2 the worker ends"
NO_OUTCOME = Outcome.deferred("451 4.3.5 the connection gave no outcome")


class Driving:
    """Delivers the items that it is given. Needs a running event loop.

    `window`: how many items may be in hand; while they are, mails that wait long for a place on a
    connection are put off, so that others are seen. None: no mail is, since all have one next hop.
    `gate`: what keeps jobs from the scheduler; None: nothing does.
    """

    def __init__(
        self,
        deliverer: Deliverer,
        connector: Connector,
        routes: Routes,
        rules: SchedulerRules,
        randomness: Randomness,
        *,
        window: int | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._gate = gate or Gate(deliverer.clock)
        self._book = SiteBook()
        self._deliverer = deliverer
        self._routes = routes
        self._window = window
        self._scheduler = Scheduler(rules, lambda n: int(randomness.uniform() * n))
        self._ledgers: dict[Ledger, str] = {}
        """Each with the scheduler's name of its mail."""
        self._jobs = JobTable()
        self._look_ups = LookUps(routes, self._on, self._found)
        self._links = Links(connector, self._happened)
        self._unopened: dict[int, str] = {}
        self._resting: list[tuple[timedelta, int]] = []
        """Jobs of sites that rest for a short time, by when that ends."""
        self._numbers = count(1)
        self._is_ending = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ledgers)

    # Items

    def take(self, item: Item) -> None:
        """Begin to deliver an item. Returns at once."""
        ledger = Ledger(item, self._deliverer, self._over)
        self._ledgers[ledger] = str(next(self._numbers))
        self._take(ledger, item.mail.recipients)

    def route_again(self) -> None:
        """Find the routes of all that waits anew: they may be others now. What connections have,
        goes as it was routed."""
        for ledger in list(self._ledgers):
            if dropped := self._drop_waiting(ledger):
                self._take(ledger, dropped)

    def _take(self, ledger: Ledger, to: Iterable[str]) -> None:
        try:
            self._route(ledger, to)
        except Exception:
            _log.exception("an item failed in an unforeseen way", **self._ids(ledger))
            self._put_aside(ledger)
        ledger.go_on()

    def _put_aside(self, ledger: Ledger) -> None:
        """Put off what has no outcome and no connection, after an unforeseen error. Without an end,
        the item would be leased until the process ends, in the place of another."""
        self._drop_waiting(ledger)
        at_work = {each for job in self._jobs.of(ledger) for each in job.recipients}
        ledger.not_tried(
            (each for each in ledger.without_outcome() if each not in at_work), UNFORESEEN
        )
        ledger.go_on()

    def _ids(self, ledger: Ledger) -> Mapping[str, str]:
        return ids_of(self._deliverer.queue, ledger.item)

    def _over(self, ledger: Ledger) -> None:
        del self._ledgers[ledger]
        self._drop_waiting(ledger)
        self._changed.set()

    def _drop_waiting(self, ledger: Ledger) -> tuple[str, ...]:
        """Take back the jobs of an item that no connection has, and its look-ups; return their
        recipients."""
        dropped = list(self._look_ups.drop(ledger))
        for job in self._jobs.of(ledger):
            if job.connection is None:
                self._withdraw(job)
                dropped += job.recipients
        return tuple(dropped)

    # Routes

    def _route(self, ledger: Ledger, to: Iterable[str]) -> None:
        """Submit the recipients whose routes are known; look up the others."""
        mail = ledger.item.mail
        groups: dict[str, list[str]] = {}
        for recipient in dict.fromkeys(to):  # a library's caller may name one twice
            groups.setdefault(domain_of(recipient), []).append(recipient)
        sites: dict[Site, tuple[DeliveryRoute, list[str]]] = {}
        for domain, recipients in groups.items():
            request = RouteRequest(domain, mail.sender, mail.tenant)
            found = self._routes.known(request)
            if isinstance(found, DeliveryRoute):
                sites.setdefault(found.site, (found, []))[1].extend(recipients)
            elif found is None:
                number, priority = next(self._numbers), mail.priority
                job = RoutingJob(number, self._ledgers[ledger], priority)
                self._look_ups.ask(job, ledger, request, tuple(recipients))
            else:
                ledger.heard(dict.fromkeys(recipients, found.outcome))
        for route, together in sites.values():
            self._submit(ledger, route, tuple(together))

    def _found(
        self, ledger: Ledger, found: DeliveryRoute | NoRoute, recipients: tuple[str, ...]
    ) -> None:
        if isinstance(found, DeliveryRoute):
            self._submit(ledger, found, recipients)
        else:
            ledger.heard(dict.fromkeys(recipients, found.outcome))
        ledger.go_on()

    # Jobs

    def _submit(self, ledger: Ledger, route: DeliveryRoute, recipients: tuple[str, ...]) -> None:
        self._book.seen(route)
        if self._gate.is_shut(ledger, route, recipients):
            return
        for each in chunks_of(recipients):
            job = OpenJob(next(self._numbers), self._ledgers[ledger], ledger, route, each)
            passage = self._gate.admit(job)
            if passage is not Passage.PUT_OFF:
                self._jobs.add(job)
            if passage is Passage.GOES:
                self._on(Submitted(job.scheduled))

    def _withdraw(self, job: OpenJob) -> None:
        """Take back a job that no connection has."""
        self._jobs.forget(job)
        self._gate.drop(job)
        self._on(Withdrawn(job.scheduled))

    def _suspend(self, site: str) -> None:
        """Take back the jobs for a site that no connection has."""
        for job in self._jobs:
            if (
                job.route.name == site
                and job.connection is None
                and self._gate.is_shut(job.ledger, job.route, job.recipients)
            ):
                self._withdraw(job)
                job.ledger.go_on()

    def sites(self) -> Iterator[SiteView]:
        """Yield what is known of the sites."""
        clock = self._deliverer.clock
        now = clock.now(), clock.elapsed()
        return self._book.views(self._jobs, self._scheduler.look_at, self._links.reason, now)

    def _on(self, event: Event) -> None:
        """Let the scheduler decide, and carry it out. No decision leads to an event at once."""
        now = self._deliverer.clock.elapsed().total_seconds()
        for decision in self._scheduler.on(event, now):
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Assign(number, connection):
                self._assign(self._jobs[number], connection)
            case OpenConnection(number, destination):
                self._unopened[number] = destination  # opened with its first job, which has the hop
            case CloseConnection(number):
                self._links.close(number)
            case PutOff(number, until):
                self._put_off(self._jobs[number], timedelta(seconds=until))
            case LookUp(number):
                self._look_ups.begin(number)
            case Rest(destination, _):
                _log.info("a next hop rests", queue=self._deliverer.queue, next_hop=destination)

    def _assign(self, job: OpenJob, number: int) -> None:
        now = self._deliverer.clock.elapsed()
        job.connection, job.assigned_at, job.place = number, now, next(self._numbers)
        destination = self._unopened.pop(number, None)
        if destination is not None and not self._is_ending:
            self._links.open(number, destination, job.route.hops[destination])
        if job.ledger.is_over or job.ledger.is_late(now) or self._is_ending:
            asyncio.get_running_loop().call_soon(self._not_needed, job)
        else:
            self._links.submit(number, job.transmission())

    def _not_needed(self, job: OpenJob) -> None:
        """Take a job off a connection that never had it; that may have closed meanwhile, so that
        the job waits again."""
        self._jobs.forget(job)
        job.ledger.not_tried(job.recipients, ENDING if self._is_ending else NO_TIME_LEFT)
        self._on(Withdrawn(job.scheduled))
        job.ledger.go_on()

    def _put_off(self, job: OpenJob, until: timedelta) -> None:
        """The site of a job rests."""
        job.connection = None
        job.rest_since = job.rest_since or self._deliverer.clock.elapsed()
        if until <= job.rest_since + SHORT_REST and not (self._is_ending or job.ledger.is_over):
            heapq.heappush(self._resting, (until, job.number))
            self._save_memory(job.ledger)
            return
        self._jobs.forget(job)
        reason = self._links.reason(job.route.hops) or RESTS
        job.ledger.not_tried(job.recipients, reason, until)
        job.ledger.go_on()

    # Connections

    def _happened(self, number: int, link: Link, event: ConnectionEvent) -> None:
        about = self._about(number, link, event)
        try:
            self._take_event(number, link, event)
        except Exception:  # else the connection's task would end, and its jobs have no end
            _log.exception("an event of a connection failed in an unforeseen way")
            for job in about:
                self._give_back(job)

    def _about(self, number: int, link: Link, event: ConnectionEvent) -> list[OpenJob]:
        """Return the jobs that end, or wait again, with an event."""
        match event:
            case JobFinished(number_of_job, _) | ContentFailed(number_of_job, _):
                numbers: Iterable[int] = (number_of_job,)
            case ConnectionClosed(_, unsaid):
                numbers = unsaid if link.connection else self._jobs.on_connection(number)
            case _:
                numbers = ()
        return [job for each in numbers if (job := self._jobs.get(each)) is not None]

    def _give_back(self, job: OpenJob) -> None:
        """End a job about which no event comes any more."""
        self._jobs.forget(job)
        self._put_aside(job.ledger)
        try:
            self._on(Withdrawn(job.scheduled))
        except Exception:
            _log.exception("a job was not taken back from the scheduler")

    def _take_event(self, number: int, link: Link, event: ConnectionEvent) -> None:
        match event:
            case JobFinished(job, outcomes, rest):
                self._finish(self._jobs[job], outcomes, link.destination, rest)
            case ContentFailed(job, error):
                self._fail(self._jobs[job], error)
            case ConnectionOpened():
                self._on(Established(number))
            case ConnectionClosed():
                for each in self._about(number, link, event):
                    each.connection = None
                self._on(Closed(number) if link.is_open else NotOpened(number))

    def _finish(
        self, job: OpenJob, outcomes: Mapping[str, Outcome], destination: str, rest: timedelta
    ) -> None:
        """Note the outcomes of a job, before all else that may fail; what is beyond them goes again
        at once, as no attempt. A destination is left alone for the `rest` that it asks for, after
        which those that are deferred come again."""
        ledger, now = job.ledger, self._deliverer.clock.elapsed()
        self._jobs.forget(job)
        placed = job.at_site(outcomes) or job.at_site(dict.fromkeys(job.recipients, NO_OUTCOME))
        ledger.heard(placed, job.seconds_until(now), now + rest if rest else timedelta(0))
        if rest:
            self._on(LeftAlone(destination, (now + rest).total_seconds()))
        self._book.replied(job.route.name, placed.values(), self._deliverer.clock.now())
        self._gate.heard(job.route.name, placed.values())
        self._on(Finished(job.number))
        left = tuple(each for each in job.recipients if each not in placed)
        if left and not ledger.is_over:
            self._submit(ledger, job.route, left)
        self._save_memory(ledger)
        ledger.go_on()

    def _save_memory(self, ledger: Ledger) -> None:
        """Drop the content of an item that no connection has."""
        if ledger.item.size_bytes > KEPT_WHILE_WAITING and all(
            each.connection is None for each in self._jobs.of(ledger)
        ):
            ledger.item.forget_content()

    def _fail(self, job: OpenJob, error: Exception) -> None:
        """The content of a job could not be read."""
        ledger, ids = job.ledger, self._ids(job.ledger)
        if isinstance(error, BlobMissing):
            _log.info("mail without its bytes", **ids)  # ended by the queue
            ledger.give_up()
        elif isinstance(error, QueueClosed | EntryEnded | EntryLost):
            ledger.give_up()
        elif isinstance(error, LeaseOver):
            ledger.not_tried(job.recipients, NO_TIME_LEFT)
        elif not ledger.is_over:
            _log.warning("mail not transmitted", **ids, exc_info=error)
            text = deferred_by(error)
            if job.is_attempt(error):
                took = job.seconds_until(self._deliverer.clock.elapsed())
                ledger.heard(dict.fromkeys(job.recipients, Outcome.deferred(text)), took)
            else:
                ledger.not_tried(job.recipients, text)
        self._jobs.forget(job)
        self._on(Withdrawn(job.scheduled))
        ledger.go_on()

    # Time

    async def run(self) -> None:
        """Let time pass, until cancelled."""
        while True:
            await self._deliverer.clock.sleep(TICK)
            self._pass_time()

    def _pass_time(self) -> None:
        now = self._deliverer.clock.elapsed()
        moment = self._scheduler.next_moment()
        if moment is not None and moment <= now.total_seconds():
            self._on(Tick())
        for site in self._gate.suspended_since():
            self._suspend(site)
        for number in self._gate.due():
            self._resubmit(number)
        while self._resting and self._resting[0][0] <= now:
            self._resubmit(heapq.heappop(self._resting)[1])
        if late := [each for each in self._ledgers if each.is_late(now)]:
            self._end_late(late)
        if self._window is not None and len(self._ledgers) >= self._window:
            self._make_room(now)

    def _resubmit(self, number: int) -> None:
        """Submit a job to the scheduler, unless it was taken back meanwhile."""
        if (job := self._jobs.get(number)) is not None:
            self._on(Submitted(job.scheduled))

    def _end_late(self, late: Sequence[Ledger]) -> None:
        """The leases of items are over: their jobs are taken back. One that is being transmitted is
        broken off with its connection; one behind another mail, or on a connection that is opening,
        is left out when the connection comes to it."""
        for ledger in late:
            self._take_back(ledger, NO_TIME_LEFT)
        first = self._jobs.in_transmission()
        for ledger in late:
            for job in self._jobs.of(ledger):
                if job.connection is None:
                    continue
                job.is_late = True
                if job.connection not in self._links:  # lost in an unforeseen error
                    self._give_back(job)
                elif first[job.connection] is job and self._links.is_open(job.connection):
                    self._links.abort(job.connection)

    def _make_room(self, now: timedelta) -> None:
        """Put off mails that have waited in vain for long, where they are more than a quarter of
        what is in hand; the last ones of them."""
        waiting = [
            each
            for each in self._ledgers
            if now - each.begun >= PATIENCE and self._only_waits(each)
        ]
        for ledger in waiting[len(self._ledgers) // 4 :]:
            self._take_back(ledger, NO_PLACE if self._jobs.waiting(ledger) else NO_ROUTER)

    def _only_waits(self, ledger: Ledger) -> bool:
        """Whether all that is open of an item waits for a connection or a router."""
        waiting = self._jobs.waiting(ledger) + self._look_ups.waiting(ledger)
        return waiting == len(ledger.open_jobs)

    def _take_back(self, ledger: Ledger, reason: str) -> None:
        if dropped := self._drop_waiting(ledger):
            ledger.not_tried(dropped, reason)
            ledger.go_on()

    # The end

    async def end(self, within: timedelta) -> None:
        """Finish what connections have, for so long at most, and close them. What waits, and what
        takes longer, stays leased, and comes again when the queue is closed."""
        self._is_ending = True
        for ledger in list(self._ledgers):
            ledger.is_cut_off = True
            self._take_back(ledger, ENDING)
        try:
            async with asyncio.timeout(within.total_seconds()):
                await self.until_empty()
        except TimeoutError:
            _log.warning(
                "deliveries cut off", queue=self._deliverer.queue, count=len(self._ledgers)
            )
        for job in self._jobs:
            if job.connection is not None:
                self._links.abort(job.connection)
        try:  # what the next hops answered until now is recorded
            async with asyncio.timeout(min(within, LONGEST_GOODBYE).total_seconds()):
                await self.until_empty()
        except TimeoutError:
            pass
        for ledger in list(self._ledgers):
            ledger.cancel()
        self._look_ups.cancel()
        await self._links.close_all(LONGEST_GOODBYE.total_seconds())

    async def until_empty(self) -> None:
        """Wait until no item is in hand."""
        while self._ledgers:
            self._changed.clear()
            await self._changed.wait()
