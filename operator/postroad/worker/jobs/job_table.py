"""The open jobs of a worker: recipients of one item that have one site, under one number for the
scheduler and for the connection; and how those that wait are taken back."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import cast

from postroad.domain.delivery.paces import LimitedMail
from postroad.domain.mail.mail import TRACEPARENT, Envelope, Outcome, domain_of
from postroad.domain.mail.shapes import Shape
from postroad.errors import PostroadError, ServerError
from postroad.ports.delivery import Transmission
from postroad.scheduling.events import DeliveryJob
from postroad.telemetry.logs import logger
from postroad.telemetry.tracing import MailSpan
from postroad.worker.jobs.deliveries import UNEXPECTED, Took
from postroad.worker.jobs.item_progress import ItemProgress
from postroad.worker.jobs.route_lookups import RouteLookups
from postroad.worker.jobs.worker_connections import WorkerConnection
from postroad.worker.route_finder import DeliveryRoute


class LeaseOver(Exception):
    """The content of an item is not read: its lease is over."""


class OpenJob:
    """One job, from when it is submitted to the scheduler until it has an end."""

    __slots__ = (
        "_has_begun",
        "assigned_at",
        "backoff_since",
        "connection",
        "is_late",
        "ledger",
        "number",
        "place",
        "recipients",
        "route",
        "scheduled",
        "span",
    )

    def __init__(
        self,
        number: int,
        mail: str,
        ledger: ItemProgress,
        route: DeliveryRoute,
        recipients: tuple[str, ...],
    ) -> None:
        self.number = number
        """The scheduler's and the connection's."""
        self.scheduled = DeliveryJob(number, mail, route.site, ledger.item.mail.priority)
        self.ledger = ledger
        self.route = route
        self.recipients = recipients
        self.connection: int | None = None
        """The one that has it; None while it waits."""
        self.place = 0
        """Jobs of a connection are transmitted in this order."""
        self.is_late = False
        """True if a connection that comes to it is to leave it out."""
        self.assigned_at = timedelta(0)
        self.backoff_since: timedelta | None = None
        """When its site was found backing off first."""
        self._has_begun = False
        self.span: MailSpan | None = None
        """Of its transmission; None: there is none."""

    def took(self, now: timedelta, link: WorkerConnection) -> Took:
        """Return how long a connection has had it."""
        had = (now - self.assigned_at).total_seconds()
        waited = (link.free_since - self.assigned_at).total_seconds()
        return Took(had, min(had, max(0.0, waited)))

    def limited(self) -> LimitedMail:
        """Return what decides about its limits by rate."""
        hop = self.route.hops[self.route.site.tiers[0][0]].next_hop
        source = "" if hop.source is None else " ".join(hop.source.addresses)
        domains = frozenset(map(domain_of, self.recipients))
        tenant = self.ledger.item.mail.tenant
        return LimitedMail(self.route.name, domains, tenant, source, self.route.first_servers)

    def transmission(self) -> Transmission:
        """Return what a connection gets of it."""
        item = self.ledger.item
        envelope: Envelope = item.mail
        if self.recipients != envelope.recipients:
            envelope = replace(envelope, recipients=self.recipients)
        if self.ledger.span is not None:  # one before it, of a connection that closed, is not sent
            self.span = self.ledger.span.child("attempt", {})
            attributes = {**envelope.attributes, TRACEPARENT: self.span.traceparent}
            envelope = replace(envelope, attributes=attributes)
        return Transmission(
            self.number,
            item.mail_id,
            envelope,
            item.size_bytes,
            self._content,
            item.shape,
            self._at_hand,
        )

    def at_site(self, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
        """Return outcomes of its recipients with the site that gave them: recipients that share
        one share the new one, too."""
        name = self.route.name
        placed = {id(each): each.at(name) for each in outcomes.values()}
        return {each: placed[id(outcomes[each])] for each in self.recipients if each in outcomes}

    def is_attempt(self, error: Exception) -> bool:
        """True if a content that failed makes an attempt: one that always breaks off is to be tried
        less and less often, a store that is away costs its mails none."""
        return self._has_begun or not isinstance(error, ServerError)

    def _at_hand(self) -> tuple[bytes, Shape | None] | None:
        kept = None if self.is_late else self.ledger.item.at_hand()
        if kept is not None:
            self.ledger.saw_content(kept[0])
        return kept

    async def _content(self) -> AsyncGenerator[bytes, None]:
        self._has_begun = False
        if self.is_late:
            raise LeaseOver
        stream = cast("AsyncGenerator[bytes, None]", self.ledger.item.stream())
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                if not self._has_begun:
                    self.ledger.saw_content(chunk)
                self._has_begun = True
                yield chunk


def deferred_by(error: Exception) -> str:
    """Return the text of an outcome for a content that could not be read."""
    if isinstance(error, PostroadError):
        return f"451 4.3.0 {type(error).__name__}"
    return UNEXPECTED


def chunks_of(recipients: tuple[str, ...], most: int) -> Iterable[tuple[str, ...]]:
    """Return recipients, so many at a time at most."""
    if len(recipients) <= most:
        return (recipients,)
    return [recipients[at : at + most] for at in range(0, len(recipients), most)]


class JobTable:
    """Each open job is here and, by its number, in its ledger, which has lookups beside jobs."""

    def __init__(self) -> None:
        self._jobs: dict[int, OpenJob] = {}
        self._at: dict[str, dict[int, OpenJob]] = {}

    def __iter__(self) -> Iterator[OpenJob]:
        return iter(list(self._jobs.values()))

    def __getitem__(self, number: int) -> OpenJob:
        return self._jobs[number]

    def get(self, number: int) -> OpenJob | None:
        """Return a job; None where it has ended."""
        return self._jobs.get(number)

    def add(self, job: OpenJob) -> None:
        """Add a job that begins to wait for a connection."""
        self._jobs[job.number] = job
        self._at.setdefault(job.route.name, {})[job.number] = job
        job.ledger.open_jobs.add(job.number)

    def forget(self, job: OpenJob) -> None:
        """Drop a job that has ended. Idempotent."""
        if self._jobs.pop(job.number, None) is not None:
            at_site = self._at[job.route.name]
            del at_site[job.number]
            if not at_site:
                del self._at[job.route.name]
        job.ledger.open_jobs.discard(job.number)

    def of(self, ledger: ItemProgress) -> list[OpenJob]:
        """Return the open jobs of an item, without its lookups."""
        return [self._jobs[number] for number in ledger.open_jobs if number in self._jobs]

    def waiting(self, ledger: ItemProgress) -> int:
        """Return how many jobs of an item wait for a connection."""
        return sum(job.connection is None for job in self.of(ledger))

    def by_site(self) -> list[list[OpenJob]]:
        """Return the jobs of each site that has some, the oldest first."""
        return [list(each.values()) for each in self._at.values()]

    def count_at(self, site: str) -> int:
        """Return how many jobs a site has."""
        return len(self._at.get(site, ()))

    def on_connection(self, number: int) -> list[int]:
        """Return the numbers of the jobs that a connection has."""
        return [each for each, job in self._jobs.items() if job.connection == number]

    def in_transmission(self) -> dict[int, OpenJob]:
        """Return of each connection the job that it transmits, or that comes first when it opens:
        found once for all, because there may be thousands of jobs."""
        first: dict[int, OpenJob] = {}
        for job in sorted(self._jobs.values(), key=lambda each: each.place):
            if job.connection is not None:
                first.setdefault(job.connection, job)
        return first


_log = logger("worker")


class Withdrawals:
    """Takes jobs and lookups back. `on_withdrawn` gets each job, for the scheduler and the gate to
    have it no longer."""

    def __init__(
        self, jobs: JobTable, lookups: RouteLookups, on_withdrawn: Callable[[OpenJob], None]
    ) -> None:
        self._jobs = jobs
        self._lookups = lookups
        self._on_withdrawn = on_withdrawn

    def withdraw(self, job: OpenJob) -> None:
        """Take back a job that no connection has."""
        self._jobs.forget(job)
        self._on_withdrawn(job)

    def drop_waiting(self, ledger: ItemProgress) -> tuple[str, ...]:
        """Take back the jobs of an item that no connection has, and its lookups; return their
        recipients."""
        dropped = list(self._lookups.drop(ledger))
        for job in self._jobs.of(ledger):
            if job.connection is None:
                self.withdraw(job)
                dropped += job.recipients
        return tuple(dropped)

    def take_back(self, ledger: ItemProgress, reason: str) -> None:
        """Defer the recipients of an item that only wait."""
        if dropped := self.drop_waiting(ledger):
            ledger.not_tried(dropped, reason)
            ledger.go_on()

    def put_aside(self, ledger: ItemProgress) -> None:
        """Defer what has no outcome and no connection, after an unexpected error. Without an end,
        the item would be leased until the process ends, in the place of another."""
        self.drop_waiting(ledger)
        at_work = {each for job in self._jobs.of(ledger) for each in job.recipients}
        ledger.not_tried(
            (each for each in ledger.without_outcome() if each not in at_work), UNEXPECTED
        )
        ledger.go_on()

    def give_back(self, job: OpenJob) -> None:
        """End a job about which no event comes any more."""
        self._jobs.forget(job)
        self.put_aside(job.ledger)
        try:
            self._on_withdrawn(job)
        except Exception:
            _log.exception("a job was not taken back from the scheduler")
