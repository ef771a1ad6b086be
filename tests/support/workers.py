"""Workers of tests: what delivers items, over connections that a test answers or over SMTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Protocol

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.mail import Envelope, Outcome
from postroad.domain.smtp.next_hops import NextHop
from postroad.ports.clock import Clock, Randomness
from postroad.ports.delivery import (
    AttemptLog,
    BeforeEnd,
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    Connector,
    ContentFailed,
    JobFinished,
    Transmission,
    at_once,
)
from postroad.ports.events import EventLog
from postroad.ports.mail_queue import Item, MailQueue
from postroad.routing.routes import ResolvedHop
from postroad.scheduling.ranking import SchedulerRules
from postroad.smtp.client.connections import SmtpConnector
from postroad.worker.jobs.deliveries import Deliverer
from postroad.worker.reporting import Reporting
from postroad.worker.route_finder import RelayRoutes, Routes
from postroad.worker.runner import Consumer, SchedulerRunner

A_HOP = NextHop("hop.example")


@asynccontextmanager
async def running(*loops: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run what a worker does beside deliveries meanwhile."""
    tasks = [asyncio.create_task(each) for each in loops]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)


class Answering(Protocol):
    """What answers a transmission."""

    async def transmit(
        self, envelope: Envelope, content: AsyncIterator[bytes]
    ) -> Mapping[str, Outcome]: ...


class AnsweringConnector:
    """Opens connections whose jobs are answered by a test."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def open(
        self,
        hop: ResolvedHop,
        on_event: Callable[[ConnectionEvent], None],
        before_end: BeforeEnd = at_once,
    ) -> AnsweredConnection:
        return AnsweredConnection(self._answering, on_event, before_end)


class AnsweredConnection:
    """One connection (see the port)."""

    def __init__(
        self,
        answering: Answering,
        on_event: Callable[[ConnectionEvent], None],
        before_end: BeforeEnd,
    ) -> None:
        self._answering, self._on_event, self._before_end = answering, on_event, before_end
        self._jobs: asyncio.Queue[Transmission | None] = asyncio.Queue()
        self._is_closing = False
        self._task = asyncio.create_task(self._run())

    def submit(self, transmission: Transmission) -> None:
        self._jobs.put_nowait(transmission)

    def close(self) -> None:
        self._is_closing = True
        self._jobs.put_nowait(None)

    def abort(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        try:
            self._on_event(ConnectionOpened())
            while not self._is_closing and (job := await self._jobs.get()) is not None:
                await self._transmit(job)
        finally:
            left = [self._jobs.get_nowait() for _ in range(self._jobs.qsize())]
            untried = tuple(each.job for each in left if each is not None)
            self._on_event(ConnectionClosed("", untried))

    async def _transmit(self, job: Transmission) -> None:
        try:
            async with aclosing(job.content()) as content:
                await self._before_end()
                outcomes = await self._answering.transmit(job.envelope, content)
        except asyncio.CancelledError:
            in_doubt = Outcome.deferred("451 4.4.2 broken off")
            self._on_event(JobFinished(job.job, dict.fromkeys(job.envelope.recipients, in_doubt)))
            raise
        except Exception as error:
            self._on_event(ContentFailed(job.job, error))
        else:
            self._on_event(JobFinished(job.job, outcomes))


class OneByOne:
    """Delivers items, and waits for the end of each."""

    def __init__(self, driving: SchedulerRunner) -> None:
        self._driving = driving

    async def deliver(self, item: Item) -> None:
        """Deliver an item until it is not in flight any more; cancelled, leave it as it is."""
        self._driving.take(item)
        try:
            await self._driving.until_empty()
        except asyncio.CancelledError:
            await self._driving.end(timedelta(0))
            raise


def a_driving(
    connector: Connector,
    plan: RetryPlan,
    clock: Clock,
    randomness: Randomness,
    *,
    routes: Routes | None = None,
    rules: SchedulerRules | None = None,
    window: int | None = None,
    queue: str = "q",
    attempt_log: AttemptLog | None = None,
    reporting: Reporting | None = None,
    events: EventLog | None = None,
) -> SchedulerRunner:
    """Return what delivers items to one hop, or by routes."""
    return SchedulerRunner(
        Deliverer(queue, plan, clock, randomness, attempt_log, reporting, events=events),
        connector,
        routes or RelayRoutes(A_HOP),
        rules or SchedulerRules(),
        randomness,
        window=window,
    )


def a_consumer(
    queue: MailQueue,
    hop: NextHop,
    plan: RetryPlan,
    concurrency: int,
    connector: Connector | None = None,
    backoff: float = 0.01,
    longest_queue: int = 1,
) -> Consumer:
    """Return a worker as `postroad worker` runs it for a next hop, but that a hop which fails
    backs off for so many seconds."""
    rules = SchedulerRules(
        concurrency,
        per_destination=concurrency,
        backlog=1,
        longest_queue=longest_queue,
        first_backoff=backoff,
        max_backoff=backoff,
    )
    driving = a_driving(
        connector or SmtpConnector(ehlo_name="w.example"),
        plan,
        MachineClock(),
        SystemRandomness(),
        routes=RelayRoutes(hop),
        rules=rules,
        queue=queue.name,
    )
    in_flight = concurrency if longest_queue == 1 else 2 * concurrency * longest_queue
    return Consumer(queue, driving, window=in_flight)
