"""Hands jobs to connections, and takes what connections report of them: outcomes, a content that
could not be read, a close.

Attempts go in turns: one to the next hops that did not defer the recipient yet, in the order of the
tiers, one in the usual order. So a backup gets the mail at the second attempt, and a server that
keeps a grey list sees the sender again at the third, also where there are many others. In memory
alone: what another process knows costs a recipient one more attempt in the usual order.
Source: RFC 5321 5.1; ADR 0078."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from uuid import UUID

from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.errors import BlobMissing, EntryEnded, EntryLost, QueueClosed
from postroad.ports.delivery import (
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    Connector,
    ContentFailed,
    JobFinished,
    TakesSeries,
)
from postroad.routing.routes import ResolvedHop
from postroad.scheduling.events import (
    BackoffRequested,
    Closed,
    ConnectionPaused,
    Established,
    Event,
    Finished,
    NotOpened,
    OpenConnection,
    Pipelined,
    Site,
    Withdrawn,
)
from postroad.scheduling.ranking import LimitsOf
from postroad.telemetry.logs import logger
from postroad.telemetry.tracing import MailSpan
from postroad.worker.jobs.deliveries import Deliverer, counts_of, ids_of, replies_of
from postroad.worker.jobs.item_progress import ItemProgress
from postroad.worker.jobs.job_table import JobTable, LeaseOver, OpenJob, Withdrawals, deferred_by
from postroad.worker.jobs.worker_connections import WorkerConnection, WorkerConnections
from postroad.worker.route_finder import DeliveryRoute

MAX_REMEMBERED = 20_000
"""Recipients of mails; those that were deferred longest ago are forgotten first."""


class Deferrals:
    """By mail and recipient, the destinations that deferred it, in their order."""

    def __init__(self) -> None:
        self._by: OrderedDict[tuple[UUID, str], tuple[str, ...]] = OrderedDict()

    def on_outcomes(
        self, mail: UUID, route: DeliveryRoute, destination: str, outcomes: Mapping[str, Outcome]
    ) -> None:
        """Note what became of recipients at a destination of a route."""
        if len(route.hops) == 1:
            return
        for recipient, outcome in outcomes.items():
            before = self._by.pop((mail, recipient), ())
            by = (*before, destination)
            if outcome.kind is OutcomeKind.DEFERRED and not set(route.hops) <= set(by):
                self._by[mail, recipient] = by
        while len(self._by) > MAX_REMEMBERED:
            self._by.popitem(last=False)

    def routes(
        self, mail: UUID, route: DeliveryRoute, recipients: Iterable[str]
    ) -> Iterator[tuple[DeliveryRoute, tuple[str, ...]]]:
        """Yield the route as this attempt takes it, for the recipients that share it."""
        if not self._by or len(route.hops) == 1:
            yield route, tuple(recipients)
            return
        groups: dict[frozenset[str], list[str]] = {}
        for recipient in recipients:
            by = self._by.get((mail, recipient), ())
            last = frozenset(by if len(by) % 2 else ()).intersection(route.hops)
            groups.setdefault(last, []).append(recipient)
        for last, together in groups.items():
            yield replace(route, site=_with_last(route.site, last)), tuple(together)


def _with_last(site: Site, last: frozenset[str]) -> Site:
    """Return a site with these destinations behind all others."""
    tiers = [tuple(each for each in tier if each not in last) for tier in site.tiers]
    tiers += [tuple(each for each in tier if each in last) for tier in site.tiers]
    return Site(tuple(filter(None, tiers)))


_log = logger("worker")

KEPT_WHILE_WAITING = 64 * 1024
"""Octets of the largest content that stays in memory while no connection has its mail: as many as
the window are in flight, and a pod has 512 MiB."""

NO_TIME_LEFT = "451 4.4.2 the next hop took too long over other recipients or other mail"
ENDING = "451 4.3.2 the worker ends"
NO_OUTCOME = Outcome.deferred("451 4.3.5 the connection gave no outcome")


class Transmissions:
    """The jobs that connections have, from their assignment to their end. `on_event` gets events
    for the scheduler, `on_replied` the outcomes that a site gave, `on_left` recipients beyond them,
    to go again at once. Needs a running event loop."""

    def __init__(
        self,
        deliverer: Deliverer,
        connector: Connector,
        jobs: JobTable,
        withdrawals: Withdrawals,
        deferrals: Deferrals,
        on_event: Callable[[Event], None],
        on_replied: Callable[[str, Collection[Outcome]], None],
        on_left: Callable[[ItemProgress, DeliveryRoute, tuple[str, ...]], None],
    ) -> None:
        self._deliverer = deliverer
        self._jobs = jobs
        self._withdrawals = withdrawals
        self._deferrals = deferrals
        self._on_event = on_event
        self._on_replied = on_replied
        self._on_left = on_left
        self.links = WorkerConnections(connector, self._happened, self._go_on)
        self._unopened: dict[int, OpenConnection] = {}
        self._places = count(1)
        self.limits_of: LimitsOf | None = None
        """Returns for how long a destination may take; None: each for the usual time."""
        self.is_ending = False
        """True if jobs that are assigned to connections are deferred, because the process ends."""

    def finish(self) -> None:
        """Let connections finish what they transmit; their other jobs are deferred."""
        self.is_ending = True
        self.links.finish()

    def expect(self, opening: OpenConnection) -> None:
        """Open a connection with its first job, which has the hop."""
        self._unopened[opening.connection] = opening

    def assign(self, job: OpenJob, number: int, now: timedelta) -> None:
        """Hand a job to a connection."""
        job.connection, job.assigned_at, job.place = number, now, next(self._places)
        opening = self._unopened.pop(number, None)
        if opening is not None and not self.is_ending:
            self._open(opening, job.route.hops[opening.destination])
        if job.ledger.is_over or job.ledger.is_late(now) or self.is_ending:
            # Later: the scheduler is amid its decisions, and takes no event now.
            asyncio.get_running_loop().call_soon(self._not_needed, job)
        else:
            self.links.submit(number, job.transmission())

    def _open(self, opening: OpenConnection, hop: ResolvedHop) -> None:
        if opening.within is not None:
            hop = replace(hop, connect_within=timedelta(seconds=opening.within))
        if self.limits_of is not None:
            hop = replace(hop, timeouts=self.limits_of(opening.destination).timeouts)
        self.links.open(opening.connection, opening.destination, hop)

    def _not_needed(self, job: OpenJob) -> None:
        """Take a job off a connection that never had it; that may have closed meanwhile, so that
        the job waits again."""
        self._jobs.forget(job)
        job.ledger.not_tried(job.recipients, ENDING if self.is_ending else NO_TIME_LEFT)
        self._on_event(Withdrawn(job.scheduled))
        job.ledger.go_on()

    def break_off(self, late: Sequence[ItemProgress]) -> None:
        """Break off what connections have of items whose leases are over: with its connection, if
        it is being transmitted; behind another mail, or on a connection that is opening, it is left
        out when the connection comes to it."""
        first = self._jobs.in_transmission()
        for ledger in late:
            for job in self._jobs.of(ledger):
                if job.connection is None:
                    continue
                job.is_late = True
                if job.connection not in self.links:  # lost in an unexpected error
                    self._withdrawals.give_back(job)
                elif first[job.connection] is job and self.links.is_open(job.connection):
                    self.links.abort(job.connection)

    def note_blocked(self) -> None:
        """Let time that connections wait for records count for no next hop."""
        for number in self.links.blocked():
            self._on_event(ConnectionPaused(number, is_held=True))

    def _go_on(self, number: int) -> None:
        self._on_event(ConnectionPaused(number, is_held=False))

    def abort_all(self) -> None:
        """Close the connections that have jobs at once; the jobs have events all the same."""
        for job in self._jobs:
            if job.connection is not None:
                self.links.abort(job.connection)

    def save_memory(self, ledger: ItemProgress) -> None:
        """Drop the content of an item that no connection has."""
        if ledger.item.size_bytes > KEPT_WHILE_WAITING and all(
            each.connection is None for each in self._jobs.of(ledger)
        ):
            ledger.item.forget_content()

    def _happened(self, number: int, link: WorkerConnection, event: ConnectionEvent) -> None:
        about = self._about(number, link, event)  # before the event takes them from the table
        try:
            self._take_event(number, link, event)
        except Exception:  # else the connection's task would end, and its jobs have no end
            _log.exception("unexpected error in an event of a connection")
            for job in about:
                self._withdrawals.give_back(job)

    def _about(self, number: int, link: WorkerConnection, event: ConnectionEvent) -> list[OpenJob]:
        """Return the jobs that end, or wait again, with an event."""
        match event:
            case JobFinished(number_of_job, _) | ContentFailed(number_of_job, _):
                numbers: Iterable[int] = (number_of_job,)
            case ConnectionClosed(_, untried):
                numbers = untried if link.connection else self._jobs.on_connection(number)
            case _:
                numbers = ()
        return [job for each in numbers if (job := self._jobs.get(each)) is not None]

    def _take_event(self, number: int, link: WorkerConnection, event: ConnectionEvent) -> None:
        match event:
            case JobFinished(job):
                self._finish(self._jobs[job], event, link)
            case ContentFailed(job, error):
                self._fail(self._jobs[job], error, link)
            case ConnectionOpened():
                link.free_since = self._deliverer.clock.elapsed()
                self._on_event(Established(number))
            case TakesSeries(jobs):
                self._on_event(Pipelined(number, jobs))
            case ConnectionClosed(text):
                # Before the event, which gives these jobs to other connections: one that seems to
                # wait while it is transmitted is taken back, and sent twice.
                for each in self._about(number, link, event):
                    each.connection = None
                    if self.is_ending:
                        self._not_needed(each)
                is_refused = bool(text) and not link.is_open
                self._on_event(NotOpened(number) if is_refused else Closed(number))

    def _finish(self, job: OpenJob, event: JobFinished, link: WorkerConnection) -> None:
        """Note the outcomes of a job; what is beyond them goes again at once, as no attempt. A
        destination is left alone for the `backoff` that it asks for, after which those that are
        deferred come again."""
        ledger, now, backoff = job.ledger, self._deliverer.clock.elapsed(), event.backoff
        self._jobs.forget(job)
        none = dict.fromkeys(job.recipients, NO_OUTCOME)
        placed = job.at_site(event.outcomes) or job.at_site(none)
        if job.span is not None:
            _end_span(job.span, link, placed)
        if any(each.kind is OutcomeKind.DELIVERED for each in placed.values()):
            # The next mail of this connection ends behind it: else a kill would repeat both.
            link.unrecorded.append(ledger.recording())
        # Before all that may fail: a mail whose outcome is not noted is sent again.
        took, link.free_since = job.took(now, link), now
        ledger.on_outcomes(placed, took, now + backoff if backoff else timedelta(0))
        if backoff:
            self._on_event(BackoffRequested(link.destination, (now + backoff).total_seconds()))
        self._on_replied(job.route.name, placed.values())
        self._deferrals.on_outcomes(ledger.item.mail_id, job.route, link.destination, placed)
        self._on_event(Finished(job.number, event.ended_session))
        left = tuple(each for each in job.recipients if each not in placed)
        if left and not ledger.is_over:
            self._on_left(ledger, job.route, left)
        self.save_memory(ledger)
        ledger.go_on()

    def _fail(self, job: OpenJob, error: Exception, link: WorkerConnection) -> None:
        """The content of a job could not be read."""
        ledger, ids = job.ledger, ids_of(self._deliverer.queue, job.ledger.item)
        if job.span is not None:
            job.span.end({"error.type": type(error).__name__}, is_error=True)
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
                took = job.took(self._deliverer.clock.elapsed(), link)
                ledger.on_outcomes(dict.fromkeys(job.recipients, Outcome.deferred(text)), took)
            else:
                ledger.not_tried(job.recipients, text)
        self._jobs.forget(job)
        self._on_event(Withdrawn(job.scheduled))
        ledger.go_on()


def _end_span(span: MailSpan, link: WorkerConnection, outcomes: Mapping[str, Outcome]) -> None:
    attributes: dict[str, str | int | list[str]] = {
        f"postroad.{kind}": number for kind, number in counts_of(outcomes).items()
    }
    attributes["postroad.next_hop"], attributes["postroad.replies"] = (
        link.destination,
        replies_of(outcomes),
    )
    is_error = all(each.kind is not OutcomeKind.DELIVERED for each in outcomes.values())
    span.end(attributes, is_error=is_error)
