"""Finds where the recipients of items go: what is not known yet is looked up, as many domains at a
time as the scheduler lets."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from postroad.domain.delivery.retries import RetryRule
from postroad.domain.mail.mail import Outcome, domain_of
from postroad.routing.routes import NoRoute
from postroad.routing.tables import RouteRequest
from postroad.scheduling.events import LookupFinished, LookupJob, LookupRequested, Site
from postroad.telemetry.logs import logger
from postroad.worker.jobs.item_progress import ItemProgress
from postroad.worker.route_finder import DeliveryRoute, Routes

_log = logger("worker")

ROUTING_FAILED = NoRoute(Outcome.deferred("451 4.3.5 routing failed"), None, ())


@dataclass(slots=True)
class _Lookup:
    """A lookup that waits or is under way."""

    ledger: ItemProgress
    request: RouteRequest
    recipients: tuple[str, ...]
    has_begun: bool = False


class RouteLookups:
    """All lookups of a worker, and the `numbers` that jobs have too. `on_event` gets events for
    the scheduler, `on_found` recipients that were not dropped, with their route. Needs a running
    event loop."""

    def __init__(
        self,
        routes: Routes,
        numbers: Iterator[int],
        on_event: Callable[[LookupRequested | LookupFinished], None],
        on_found: Callable[[ItemProgress, DeliveryRoute, tuple[str, ...]], None],
    ) -> None:
        self._routes = routes
        self._numbers = numbers
        self._on_event = on_event
        self._on_found = on_found
        self._asked: dict[int, _Lookup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.retries: Sequence[RetryRule] = ()
        """Plans of destinations; the first that fits decides, and where none does, the queue's."""

    def route(self, ledger: ItemProgress, name: str, to: Iterable[str]) -> None:
        """Find the routes of recipients: at once where they are known; the others wait for a
        lookup. `name`: the scheduler's, of the mail."""
        mail = ledger.item.mail
        groups: dict[str, list[str]] = {}
        for recipient in dict.fromkeys(to):  # a library's caller may name one twice
            groups.setdefault(domain_of(recipient), []).append(recipient)
        sites: dict[Site, tuple[DeliveryRoute, list[str]]] = {}
        for domain, recipients in groups.items():
            request = RouteRequest(domain, mail.sender, mail.tenant)
            found = self._routes.known(request)
            if self.retries and found is not None:
                self._note_plan(ledger, domain, found, recipients)
            if isinstance(found, DeliveryRoute):
                if found.variants is not None:
                    found = found.of_mail(ledger.item.mail_id)
                sites.setdefault(found.site, (found, []))[1].extend(recipients)
            elif found is None:
                self._ask(ledger, name, request, tuple(recipients))
            else:
                ledger.on_outcomes(dict.fromkeys(recipients, found.outcome))
        for route, together in sites.values():
            self._on_found(ledger, route, tuple(together))

    def _note_plan(
        self,
        ledger: ItemProgress,
        domain: str,
        found: DeliveryRoute | NoRoute,
        recipients: Iterable[str],
    ) -> None:
        """Let recipients be tried again as the first rule has it that fits."""
        servers = () if isinstance(found, NoRoute) else found.first_servers
        rule = next((each for each in self.retries if each.fits(domain, servers)), None)
        if rule is not None:
            ledger.plans = ledger.plans or {}
            ledger.plans.update(dict.fromkeys(recipients, rule.plan))

    def _ask(
        self, ledger: ItemProgress, name: str, request: RouteRequest, recipients: tuple[str, ...]
    ) -> None:
        """Let a lookup wait."""
        job = LookupJob(next(self._numbers), name, ledger.item.mail.priority)
        # Before the event, by which it may begin: unknown, it seems to wait, and is deferred.
        self._asked[job.number] = _Lookup(ledger, request, recipients)
        ledger.open_jobs.add(job.number)
        self._on_event(LookupRequested(job))

    def begin(self, number: int) -> None:
        """Begin a lookup, for which there is a router."""
        if (asked := self._asked.get(number)) is not None:
            asked.has_begun = True
        task = asyncio.get_running_loop().create_task(self._look_up(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def waiting(self, ledger: ItemProgress) -> int:
        """Return how many lookups of an item wait for a router."""
        found = (self._asked.get(number) for number in ledger.open_jobs)
        return sum(each is not None and not each.has_begun for each in found)

    def drop(self, ledger: ItemProgress) -> Iterator[str]:
        """Give the lookups of an item up; yield their recipients."""
        for number in list(ledger.open_jobs):
            if (asked := self._asked.pop(number, None)) is not None:
                ledger.open_jobs.discard(number)
                yield from asked.recipients

    def cancel(self) -> None:
        """Break off what is under way."""
        for task in self._tasks:
            task.cancel()

    async def _look_up(self, number: int) -> None:
        found: DeliveryRoute | NoRoute = ROUTING_FAILED
        if (asked := self._asked.get(number)) is not None:
            try:
                found = await self._routes.find(asked.request)
            except Exception:
                _log.exception("a route was not found", mail_id=str(asked.ledger.item.mail_id))
        self._on_event(LookupFinished(number))
        # Looked at again: recipients that were taken back during the lookup would get two copies.
        if (asked := self._asked.pop(number, None)) is not None:
            asked.ledger.open_jobs.discard(number)
            if self.retries:
                self._note_plan(asked.ledger, asked.request.domain, found, asked.recipients)
            if isinstance(found, DeliveryRoute):
                if found.variants is not None:
                    found = found.of_mail(asked.ledger.item.mail_id)
                self._on_found(asked.ledger, found, asked.recipients)
            else:
                asked.ledger.on_outcomes(dict.fromkeys(asked.recipients, found.outcome))
            asked.ledger.go_on()
