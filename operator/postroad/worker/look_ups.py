"""Looks up where the recipients of items go, as many at a time as the scheduler lets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from postroad.domain.mail import Outcome
from postroad.routing.routes import NoRoute
from postroad.routing.tables import RouteRequest
from postroad.scheduling.events import Answered, Asked
from postroad.scheduling.jobs import RoutingJob
from postroad.telemetry.logs import logger
from postroad.worker.ledger import Ledger
from postroad.worker.routing import DeliveryRoute, Routes

_log = logger("worker")

ROUTING_FAILED = NoRoute(Outcome.deferred("451 4.3.5 routing failed"), None, ())


@dataclass(slots=True)
class _LookUp:
    """A look-up that waits or is under way."""

    ledger: Ledger
    request: RouteRequest
    recipients: tuple[str, ...]
    has_begun: bool = False


class LookUps:
    """All look-ups of a worker. `on_event` gets events for the scheduler, `on_found` the route of
    recipients that were not dropped. Needs a running event loop."""

    def __init__(
        self,
        routes: Routes,
        on_event: Callable[[Asked | Answered], None],
        on_found: Callable[[Ledger, DeliveryRoute | NoRoute, tuple[str, ...]], None],
    ) -> None:
        self._routes = routes
        self._on_event = on_event
        self._on_found = on_found
        self._asked: dict[int, _LookUp] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(
        self,
        job: RoutingJob,
        ledger: Ledger,
        request: RouteRequest,
        recipients: tuple[str, ...],
    ) -> None:
        """Let a look-up wait."""
        self._asked[job.number] = _LookUp(ledger, request, recipients)
        ledger.open_jobs.add(job.number)
        self._on_event(Asked(job))

    def begin(self, number: int) -> None:
        """Begin a look-up, for which there is a router."""
        if (asked := self._asked.get(number)) is not None:
            asked.has_begun = True
        task = asyncio.get_running_loop().create_task(self._look_up(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def waiting(self, ledger: Ledger) -> int:
        """Return how many look-ups of an item wait for a router."""
        found = (self._asked.get(number) for number in ledger.open_jobs)
        return sum(each is not None and not each.has_begun for each in found)

    def drop(self, ledger: Ledger) -> Iterator[str]:
        """Give the look-ups of an item up; yield their recipients."""
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
        self._on_event(Answered(number))
        if (asked := self._asked.pop(number, None)) is not None:
            asked.ledger.open_jobs.discard(number)
            self._on_found(asked.ledger, found, asked.recipients)
