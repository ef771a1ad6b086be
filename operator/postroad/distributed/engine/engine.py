"""State that the operations of one queue share: its ports, its clock, its ids."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from postroad.distributed.engine.limits_cache import LimitsCache
from postroad.distributed.engine.timing import Backoff, Timing
from postroad.domain.queues.entries import Entry, EntryKey, place
from postroad.domain.queues.lifetimes import DEAD_LETTER_LIFETIME
from postroad.domain.queues.names import QueueName
from postroad.domain.values.identifiers import Identifiers, moment_of
from postroad.domain.values.instants import moment_after
from postroad.errors import ClockSkew, ConfigurationStale, QueueClosed
from postroad.event_log.operations import OperationEvents, operation_events_of
from postroad.ports.blobs import Blobs
from postroad.ports.broker import Broker
from postroad.ports.clock import Clock, Randomness
from postroad.ports.events import EventSpool
from postroad.ports.view import ConfigurationSource, Effective, View
from postroad.telemetry.logs import Logger, logger

MAX_UNTIL_CLOSED = 1024
"""Bounds the memory of withdrawals that wait for the view, each with its envelope."""


class Closeable(Protocol):
    """An object with connections or tasks to end."""

    async def close(self) -> None: ...


async def two_weeks() -> timedelta:
    """Return the lifetime of rows in tables without a configured one."""
    return timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Parts:
    """Ports that an engine is made of. `largest_mail` is in octets; None: no limit. `row_lifetime`
    reads how long the view keeps a row that is inserted now (`ViewStore.row_lifetime`). `owned`
    is closed with the queue, in order."""

    name: QueueName
    broker: Broker
    view: View
    blobs: Blobs
    configuration: ConfigurationSource
    clock: Clock
    randomness: Randomness
    timing: Timing = field(default_factory=Timing)
    delivery_limit: int = 20
    largest_mail: int | None = None
    dead_letter_lifetime: timedelta = DEAD_LETTER_LIFETIME
    row_lifetime: Callable[[], Awaitable[timedelta | None]] = two_weeks
    event_spool: EventSpool | None = None
    owned: tuple[Closeable, ...] = ()


class Engine:
    """The parts, and what is built from them once per handle."""

    def __init__(self, parts: Parts) -> None:
        self.name = parts.name
        self.labels = (parts.name.namespace, parts.name.name)
        """The labels of the queue in metrics."""
        self.broker = parts.broker
        self.view = parts.view
        self.blobs = parts.blobs
        self.configuration = parts.configuration
        self.clock = parts.clock
        self.randomness = parts.randomness
        self.timing = parts.timing
        self.delivery_limit = parts.delivery_limit
        self.largest_mail = parts.largest_mail
        self.dead_letter_lifetime = parts.dead_letter_lifetime
        self.row_lifetime = parts.row_lifetime
        self.event_spool = parts.event_spool
        self.owned = parts.owned
        self.limits_cache = LimitsCache(parts.view, parts.clock, parts.timing)
        self.ids = Identifiers(parts.clock.now, parts.randomness.bits)
        self.in_flight: set[UUID] = set()
        """The entries that this process has handed out and that have not ended."""
        self.log: Logger = logger("distributed").bind(queue=str(parts.name))
        self.on_ending: Callable[[], None] = lambda: None
        """Called after every entry that this process ended: draws an update of browse start."""
        self.on_withdrawn: Callable[[Entry], None] = lambda _: None
        """Called for a failed enqueue that was withdrawn and whose message the broker may have."""
        self.closed = False
        self._background: set[asyncio.Task[Any]] = set()
        self._until_closed: set[asyncio.Task[Any]] = set()

    async def events(self, operation: str) -> OperationEvents | None:
        """Return what makes the events of an operation on waiting mails, if a stream gets them.
        Raises: ServerError."""
        asked = (self.view.shared_state, self.event_spool, self.clock)
        return await operation_events_of(operation, str(self.name), *asked)

    def check_open(self) -> None:
        """Raises: QueueClosed."""
        if self.closed:
            raise QueueClosed(f"{self.name} was closed")

    async def new_key(self, after: UUID | None = None) -> EntryKey:
        """Make the key of a new entry, in the current slice. A successor's id is greater than its
        predecessor's, also when a clock ahead of this one made that: browse start passes no
        successor before its predecessor. No entry is made before browse start. Raises: ClockSkew,
        ConfigurationStale, ViewError."""
        await self.limits_cache.check_clock()
        configuration = self.configuration.effective().writing
        enqueue_id = self.ids.new(after)
        if moment_of(enqueue_id) - self.clock.now() > self.timing.apart:
            raise ClockSkew("the local clock stepped back further than tolerated")
        key = place(enqueue_id, configuration.slice_window, configuration.bucket_count)
        if (await self.limits_cache.limits()).have_passed(key.slice_start):
            raise ClockSkew("the local clock puts a new mail before browse start")
        return key

    def check_still(self, effective: Effective) -> None:
        """Check, before a write that depends on earlier reads, that the configuration is still the
        one they used. Raises: ConfigurationStale."""
        if self.configuration.effective() != effective:
            raise ConfigurationStale("the configuration changed meanwhile")

    def is_overdue(self, key: EntryKey) -> bool:
        """True if a row that is inserted now may come into a slice that is closed or drained, by
        the local clock or by the view's time: a clock that is behind would be too late, and so
        would the view's time as a machine that was paused reckons it."""
        now = max(self.clock.now(), self.limits_cache.now())
        return now - moment_of(key.enqueue_id) >= self.timing.deadline

    def moment_after(self, delay: timedelta) -> datetime | None:
        """As `instants.moment_after`, from now on."""
        return moment_after(self.clock.now(), delay)

    def backoff(self) -> Backoff:
        return Backoff(
            self.clock, self.randomness, self.timing.backoff, self.timing.longest_backoff
        )

    def in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run best-effort work that `finish_background` waits for."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def until_closed(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run best-effort work that may take as long as a server is away; `finish_background`
        cancels it. Beyond `MAX_UNTIL_CLOSED` it is not begun."""
        if len(self._until_closed) >= MAX_UNTIL_CLOSED:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._until_closed.add(task)
        task.add_done_callback(self._until_closed.discard)

    async def finish_background(self) -> None:
        """Wait for background work, which handles its errors; cancel the work of `until_closed`."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        for task in self._until_closed:
            task.cancel()
        await asyncio.gather(*self._until_closed, return_exceptions=True)
