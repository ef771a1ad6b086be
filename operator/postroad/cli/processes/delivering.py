"""Delivers the mail of a queue while the process runs: by settings, and by a file of delivery that
may change meanwhile."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.bootstrap import shared_state_of, suppression_list_of, transports
from postroad.bootstrap.targets import DeliveryTarget, rules_of, target_of, window_of
from postroad.bootstrap.transports import ehlo_name_of, hostname_of, open_resolver, open_sts
from postroad.cli.processes.events import events_of, sending
from postroad.cli.processes.long_running import Process, background_maintenance, following
from postroad.delivery_settings.delivery import DeliveryFileSettings, DeliverySettings
from postroad.delivery_settings.events import EventStream
from postroad.delivery_settings.hops import Hop
from postroad.delivery_settings.routing import RoutingSettings, StsSettings
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.delivery.sites import RerouteTable
from postroad.domain.delivery.webhooks import WebhookAddress
from postroad.domain.reports.composing import ReportAuthor
from postroad.domain.reports.deciding import ReportLimit, ReportRules
from postroad.domain.smtp.bounces import use_rules
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.errors import InvalidSettings
from postroad.handling import HandlerFunction
from postroad.ports.clock import Randomness
from postroad.ports.delivery import AttemptLog, Resolver, StsPolicies, Topic
from postroad.ports.mail_queue import MailQueue
from postroad.routing.answers import Answer, Question
from postroad.routing.routes import NoRoute
from postroad.routing.tables import RouteRequest
from postroad.settings import Settings
from postroad.telemetry.logs import logger
from postroad.worker.jobs.admission import AdmissionGate
from postroad.worker.jobs.deliveries import Deliverer
from postroad.worker.reporting import Reporting
from postroad.worker.route_finder import (
    DeliveryRoute,
    FoundRoutes,
    RelayRoutes,
    Reroutes,
    RouteFinder,
)
from postroad.worker.runner import MAX_GOODBYE, Consumer, SchedulerRunner
from postroad.worker.sites.control import FlushAcks, SharedStateReader, SiteControl
from postroad.worker.sites.rate_limiter import RateLimiter, held_of
from postroad.worker.sites.shown_outcomes import ShownOutcomes
from postroad.worker.sites.suppressing import Suppressing

if TYPE_CHECKING:
    from postroad.bootstrap.delivery_file import DeliveryDocument, DeliveryFile


_log = logger("worker")


def reporting_of(settings: Settings, queue: MailQueue, plan: RetryPlan) -> Reporting | None:
    """Return what reports to the senders of a queue's mail; None where that is switched off."""
    section, host = settings.reports, hostname_of(settings)
    if not section.enabled:
        return None
    if section.author is None and ehlo_name_of(settings) is None:
        _log.warning(
            "reports are from a name that many servers refuse: set POSTROAD_HOSTNAME or"
            " POSTROAD_REPORTS_AUTHOR",
            hostname=host,
        )
    return Reporting(
        queue,
        ReportAuthor(host, section.author or f"MAILER-DAEMON@{host}"),
        plan,
        MachineClock(),
        rules=ReportRules(
            section.delay_after,
            section.largest_returned_bytes,
            section.administrator,
        ),
        limit=ReportLimit(section.per_minute),
    )


class RoutesBySettings:
    """Routes by the routing of a file of delivery (the port `Routes`). What was found in DNS, and
    policies of MTA-STS, stay over changes of all else. `ca_file` verifies the web servers of
    policies. `reroutes`: the mail that goes elsewhere now. Needs a running event loop; asks on
    first use. Raises: InvalidSettings, as where there is no name server."""

    def __init__(
        self,
        routing: RoutingSettings,
        ca_file: Path | None,
        reroutes: Callable[[], RerouteTable] = RerouteTable,
    ) -> None:
        self._reroutes = reroutes
        self._ca_file = ca_file
        self._clock = MachineClock()
        self._resolver = open_resolver(routing.resolver)
        self._sts: tuple[StsSettings, StsPolicies] | None = None
        self._use(routing, self._resolver)

    def replace(self, routing: RoutingSettings) -> bool:
        """Find routes by other settings from now on; return whether they differ. Raises:
        InvalidSettings; then all stays as it is."""
        if routing == self._routing:
            return False
        same = routing.resolver == self._routing.resolver
        self._use(routing, self._resolver if same else open_resolver(routing.resolver))
        return True

    def _use(self, routing: RoutingSettings, resolver: Resolver) -> None:
        sts = self._sts
        if routing.honours_sts and (sts is None or sts[0] != routing.sts):
            opened = open_sts(routing.sts, self, self._may_reach, self._ca_file)
            sts = routing.sts, opened
        self._routing, self._plan, self._resolver, self._sts = (
            routing,
            routing.plan(),
            resolver,
            sts,
        )
        honoured = sts[1] if sts is not None and routing.honours_sts else None
        finder = RouteFinder(self._plan, resolver, SystemRandomness(), honoured, self._reroutes)
        self._found = FoundRoutes(finder, self._clock)

    def forget(self) -> None:
        """Find all routes anew: mail goes elsewhere now."""
        self._found.forget()

    @property
    def rule_names(self) -> Sequence[str]:
        return [each.name for each in self._routing.rules]

    def _may_reach(self, address: str) -> bool:
        return self._plan.may_reach(address)

    async def look_up(self, *questions: Question) -> tuple[Answer, ...]:
        """Ask the name servers of the settings as they are now (the port `Resolver`)."""
        return await self._resolver.look_up(*questions)

    def known(self, request: RouteRequest) -> DeliveryRoute | NoRoute | None:
        """Return a route that was found not long ago (see `Routes`)."""
        return self._found.known(request)

    async def find(self, request: RouteRequest) -> DeliveryRoute | NoRoute:
        return await self._found.find(request)


def target_and_file(
    settings: Settings, relay: Hop | None = None
) -> tuple[DeliveryTarget, DeliveryFile | None]:
    """Return where mail goes, and the file of delivery. `relay`: of the command line. Raises:
    InvalidSettings."""
    delivery = transports.open_delivery(settings, relay)
    decided = DeliveryFileSettings(relay=relay) if delivery is None else delivery.current.settings
    return target_of(settings, decided), delivery


@dataclass(frozen=True, slots=True)
class FollowedParts:
    """The parts of a worker that obey a file of delivery. Without one, all is as usual."""

    this: Process
    settings: Settings
    plan: RetryPlan
    routes: RelayRoutes | RoutesBySettings
    control: SiteControl
    pacer: RateLimiter | None
    suppressing: Suppressing | None
    shown: ShownOutcomes
    driving: SchedulerRunner

    def begin(self, settings: DeliverySettings) -> None:
        """Obey what a file has at the start. Raises: InvalidSettings."""
        self.driving.retry(settings.retry_rules(self.plan))
        self.driving.limit(settings.connection_limits())
        self.control.use(settings.reply_rules())

    def use(self, send: Callable[[Sequence[EventStream]], None], file: DeliveryDocument) -> None:
        """Take up what a file has now. Raises: InvalidSettings where it leads to another kind of
        target, or does not fit the queue; nothing is changed then."""
        changed = file.settings
        found, retries = target_of(self.settings, changed), changed.retry_rules(self.plan)
        send(changed.events)  # first, as these may raise
        is_other = _replace(self.routes, found)
        if self.pacer is not None:
            is_other |= self.pacer.replace(changed.limit_rules())
        # What waits may go at once now.
        is_other |= self.driving.limit(changed.connection_limits())
        self.driving.retry(retries)
        self.control.use(changed.reply_rules())
        use_rules(changed.bounce_rules)
        if self.suppressing is not None:
            self.suppressing.rules = self.this.suppression = changed.suppression_rules()
        if is_other:
            self.driving.route_again()


async def deliver(
    this: Process, settings: Settings, target: DeliveryTarget, delivery: DeliveryFile | None
) -> None:
    """Deliver mail until the process is to end. Raises: as `dequeue`; InvalidSettings."""
    is_routed = isinstance(target, RoutingSettings)
    if is_routed and transports.ehlo_name_of(settings) is None:
        _log.warning("no name for EHLO: set POSTROAD_HOSTNAME, as many servers refuse an address")
    streams = () if delivery is None else delivery.current.settings.events
    events_of(this, streams)
    shared_state, name = shared_state_of(this.queue), _worker_name()
    reroutes = Reroutes(MachineClock())
    attempt_log = transports.open_attempt_log(settings)
    try:
        parts = _parts_of(this, settings, target, delivery, reroutes, name, attempt_log)
        routes, driving = parts.routes, parts.driving
        acks = FlushAcks(
            shared_state,
            name,
            relay=lambda: routes.site if isinstance(routes, RelayRoutes) else None,
        )
        reader = SharedStateReader(
            shared_state,
            MachineClock(),
            {
                Topic.SUSPENSIONS: parts.control.obey,
                Topic.REROUTES: partial(reroutes.obey, partial(_route_again, routes, driving)),
                Topic.FLUSHES: partial(acks.acknowledge, driving.try_now),
                Topic.WATCHERS: parts.shown.obey,
            },
        )
        await reader.read()  # before the first mail
        consumer = Consumer(this.queue, driving, window=window_of(settings, target))
        async with (
            background_maintenance(this),
            _controlled(reader, parts),
            sending(this, settings, settings.worker.delivery_file, streams) as send,
            following(this, delivery, partial(parts.use, send)),
        ):
            await consumer.run(this.stop, this.drain_within)
    finally:
        if attempt_log is not None:
            attempt_log.close()


def _parts_of(
    this: Process,
    settings: Settings,
    target: DeliveryTarget,
    delivery: DeliveryFile | None,
    reroutes: Reroutes,
    name: str,
    attempt_log: AttemptLog | None,
) -> FollowedParts:
    """Make a worker's parts, which obey the file as it is. Raises: InvalidSettings."""
    randomness, window = SystemRandomness(), window_of(settings, target)
    is_routed = isinstance(target, RoutingSettings)
    section = settings.retry
    plan = RetryPlan(section.lanes, section.max_age, soft_bounce=section.soft_bounce)
    routes = _open_routes(settings, target, reroutes)
    shown = ShownOutcomes(
        shared_state_of(this.queue),
        MachineClock(),
        name,
        with_addresses=settings.worker.attempt_log_addresses,
    )
    control = SiteControl(
        shared_state_of(this.queue),
        MachineClock(),
        name,
        watches_replies=is_routed and settings.worker.suspend_by_replies,
        rules=partial(_rule_names, routes),
        has_program=isinstance(target, WebhookAddress | HandlerFunction),
        left=lambda: shown.left,
    )
    pacer = suppressing = None
    if delivery is not None:
        decided = delivery.current.settings
        limits, held = decided.limit_rules(), held_of(window)
        pacer = RateLimiter(limits, shared_state_of(this.queue), MachineClock(), name, held)
        use_rules(decided.bounce_rules)
        addresses, rules = suppression_list_of(this.queue), decided.suppression_rules()
        suppressing = Suppressing(this.queue.name, addresses, MachineClock(), rules)
    driving = SchedulerRunner(
        _deliverer_of(settings, this, plan, randomness, attempt_log, suppressing, shown),
        transports.open_connector(settings, target, delivery),
        routes,
        rules_of(settings, target),
        randomness,
        window=window if is_routed else None,
        gate=AdmissionGate(MachineClock(), control, pacer),
        suppressing=suppressing,
    )
    parts = FollowedParts(this, settings, plan, routes, control, pacer, suppressing, shown, driving)
    if delivery is not None:
        parts.begin(delivery.current.settings)
    return parts


def _deliverer_of(
    settings: Settings,
    this: Process,
    plan: RetryPlan,
    randomness: Randomness,
    log: AttemptLog | None,
    suppressing: Suppressing | None,
    shown: ShownOutcomes,
) -> Deliverer:
    reporting = reporting_of(settings, this.queue, plan)
    return Deliverer(
        this.queue.name,
        plan,
        MachineClock(),
        randomness,
        log,
        reporting,
        suppressing,
        this.events,
        this.tracer,
        shown,
    )


def _replace(routes: RelayRoutes | RoutesBySettings, target: DeliveryTarget) -> bool:
    """Let mail go to another target of the same kind; return whether it is another. Raises:
    InvalidSettings."""
    if isinstance(target, WebhookAddress | HandlerFunction):
        return False
    if isinstance(routes, RelayRoutes) and isinstance(target, NextHop):
        return routes.replace(target)
    if not isinstance(routes, RelayRoutes) and isinstance(target, RoutingSettings):
        return routes.replace(target)
    raise InvalidSettings("mail would go to another kind of target", hint="restart the process")


def _worker_name() -> str:
    """This worker's name in the shared state. Pods may share process ids, and machines names."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"


@asynccontextmanager
async def _controlled(reader: SharedStateReader, parts: FollowedParts) -> AsyncIterator[None]:
    """Let a worker obey its shared state and limits, and publish what it knows of its sites, and
    its outcomes to those who watch."""
    control, pacer = parts.control, parts.pacer
    running = [
        asyncio.create_task(reader.run(), name="what is obeyed of the shared state"),
        asyncio.create_task(control.run(parts.driving.sites), name="entries of sites"),
        asyncio.create_task(parts.shown.run(), name="outcomes that are watched"),
    ]
    if pacer is not None:
        running.append(asyncio.create_task(pacer.run(), name="shares of limits"))
    try:
        yield
    finally:
        for each in running:
            each.cancel()
        await asyncio.wait(running)
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_GOODBYE.total_seconds()):
                await control.close()
                if pacer is not None:
                    await pacer.close()


def _route_again(routes: RelayRoutes | RoutesBySettings, driving: SchedulerRunner) -> None:
    """Let all mail in flight go where reroutes lead now."""
    routes.forget()
    driving.route_again()


def _rule_names(routes: RelayRoutes | RoutesBySettings) -> Sequence[str]:
    return () if isinstance(routes, RelayRoutes) else routes.rule_names


def _open_routes(
    settings: Settings, target: DeliveryTarget, reroutes: Reroutes
) -> RelayRoutes | RoutesBySettings:
    """Return what finds routes. Needs a running event loop; asks on first use. Raises:
    InvalidSettings, as where there is no name server."""
    if isinstance(target, NextHop):
        return RelayRoutes(target, reroutes=lambda: reroutes.table)
    if isinstance(target, WebhookAddress | HandlerFunction):
        return RelayRoutes(NextHop(target.name, 0, TlsMode.NONE), target.name)
    return RoutesBySettings(target, settings.ca_file, lambda: reroutes.table)
