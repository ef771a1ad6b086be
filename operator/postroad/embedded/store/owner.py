"""`MailQueue` over a store that this process owns."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import get_ident
from uuid import UUID

from postroad.domain.mail.mail import Mail
from postroad.domain.queues.documents import MailView, Sizes
from postroad.domain.queues.selection import Selector
from postroad.embedded.log.layout import SpoolKind
from postroad.embedded.log.options import reason_of
from postroad.embedded.store import administration, leases
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.enqueue import accept_stored, receive, receive_portion
from postroad.embedded.store.items import SpoolItem
from postroad.embedded.store.maintenance import Maintenance
from postroad.errors import PostroadError, StoreFull
from postroad.event_log.operations import OperationEvents
from postroad.ports.mail_queue import NO_DELAY, Administration, Operation, check_prefetch
from postroad.telemetry import metrics

MAX_SCRAPE_SECONDS = 1.0
"""For which a scrape in another thread waits for the event loop."""


class Consumer:
    """Asks for items, and has at most `prefetch` that have not ended. To cancel `next` is safe."""

    def __init__(self, labels: tuple[str, str], engine: Engine, prefetch: int) -> None:
        self._labels, self._engine = labels, engine
        self._free = asyncio.Semaphore(prefetch)
        self._leased = metrics.LEASED.labels(*labels)

    async def next(self) -> SpoolItem:
        """Wait for an item. Raises: QueueClosed, StoreFailed, StoreDamaged."""
        await self._free.acquire()
        try:
            entry, record, kept = await leases.lease(self._engine)
            item = SpoolItem(self._engine, entry, record, kept, self._labels, self._gone)
        except BaseException:
            self._free.release()  # else each `next` that is cancelled takes a place for good
            raise
        self._leased.inc()
        return item

    def _gone(self, _: SpoolItem) -> None:
        self._leased.dec()
        self._free.release()


FindEvents = Callable[[Operation], Awaitable[OperationEvents | None]]
"""Returns what makes the events of an operation, if a stream gets them."""


async def no_events(operation: Operation) -> None:
    """Return what a queue without events has: None."""


class OwnedQueue(Administration):
    """The port over an engine. `name` is what the queue is called in metrics and to people."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        maintenance: Maintenance,
        find_events: FindEvents = no_events,
    ) -> None:
        self._name, self.engine, self.maintenance = name, engine, maintenance
        self._find_events = find_events
        self._labels = metrics.of_queue(name)
        self._enqueued = metrics.ENQUEUED.labels(*self._labels)
        self._enqueue_seconds = metrics.ENQUEUE_SECONDS.labels(*self._labels)
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._ages: tuple[timedelta, Mapping[str, Mapping[timedelta, int]]] | None = None
        metrics.QUEUE_MAILS.samples = self._mails_by_state
        metrics.QUEUE_DUE.samples = lambda: self._sample(lambda sizes: sizes.due)
        metrics.QUEUE_OLDEST_DUE.samples = lambda: self._sample(self._oldest_seconds)

    @property
    def name(self) -> str:
        return self._name

    async def enqueue(
        self, mail: Mail, delay: timedelta = NO_DELAY, *, key: str | None = None
    ) -> UUID:
        clock = self.engine.clock
        began = clock.elapsed()
        try:
            enqueue_id, is_new = await receive(self.engine, mail, delay, key)
        except PostroadError as error:
            self.count_failure(reason_of(error))
            raise
        if not is_new:
            return enqueue_id
        self._enqueued.inc()
        seconds = (clock.elapsed() - began).total_seconds()
        self._enqueue_seconds.observe(seconds)
        return enqueue_id

    async def enqueue_portion(self, mails: Sequence[Mail]) -> list[UUID | Exception]:
        """See `enqueue.receive_portion`."""
        began = self.engine.clock.elapsed()
        found = await receive_portion(self.engine, mails)
        seconds = (self.engine.clock.elapsed() - began).total_seconds()
        for each in found:
            if isinstance(each, UUID):
                self._enqueued.inc()
                self._enqueue_seconds.observe(seconds)
        for error in {id(each): each for each in found if not isinstance(each, UUID)}.values():
            self.count_failure(reason_of(error))
        return found

    @property
    def incoming(self) -> Path:
        return Path(self.engine.layout.incoming)

    def has_room(self, size_bytes: int, *, is_taken: bool = False) -> bool:
        # A pool of free files is room: the mail that needs it empties the pool.
        engine = self.engine
        return engine.limits.has_room(size_bytes, is_taken=is_taken) or engine.slots.has_surplus

    def accept_stored(self, payload: bytes, leased: set[int]) -> tuple[UUID, asyncio.Future[None]]:
        """See `enqueue.accept_stored`."""
        began = self.engine.clock.elapsed()
        try:
            enqueue_id, queued = accept_stored(self.engine, payload, leased)
        except PostroadError as error:
            self.count_failure(reason_of(error))
            raise
        queued.add_done_callback(partial(self._count_stored, began))
        return enqueue_id, queued

    async def lease_slots(self, most: int, kind: SpoolKind) -> list[int]:
        """Return slots of a kind that another process may fill. Raises: StoreFull, StoreFailed."""
        self.engine.check()
        try:
            self.engine.limits.check_room(0)
        except StoreFull:
            if not await self.engine.make_room():
                raise
            self.engine.limits.check_room(0)
        return await self.engine.slots.lease(most, kind)

    def count_failure(self, reason: str) -> None:
        """Count a mail that was refused, here or by a process that stores mails for this one."""
        metrics.ENQUEUE_FAILURES.labels(*self._labels, reason).inc()

    def _count_stored(self, began: timedelta, queued: asyncio.Future[None]) -> None:
        error = queued.exception()
        if error is not None:
            return self.count_failure(reason_of(error))
        self._enqueued.inc()
        seconds = (self.engine.clock.elapsed() - began).total_seconds()
        return self._enqueue_seconds.observe(seconds)

    async def dequeue(self, prefetch: int = 10) -> AsyncIterator[SpoolItem]:
        consumer = self.consumer(prefetch)
        while True:
            yield await consumer.next()

    def consumer(self, prefetch: int) -> Consumer:
        """Return a consumer of this store. Raises: InvalidInput."""
        check_prefetch(prefetch)
        return Consumer(self._labels, self.engine, prefetch)

    async def browse(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        async for view in self._views(selector or Selector.all(), dead=False):
            yield view

    async def dead_letters(self, selector: Selector | None = None) -> AsyncIterator[MailView]:
        async for view in self._views(selector or Selector.all(), dead=True):
            yield view

    async def _views(self, wanted: Selector, *, dead: bool) -> AsyncIterator[MailView]:
        found = administration.select(self.engine, wanted, dead=dead, every=wanted.pulse)
        async for entry, record in found:
            yield administration.view_of(self.engine, entry, record)

    def content(self, enqueue_id: UUID) -> AsyncIterator[bytes]:
        return administration.content(self.engine, enqueue_id)

    async def size(self) -> Sizes:
        engine = self.engine
        await engine.indexed.wait()
        engine.check()
        return self._sizes()

    def _sizes(self) -> Sizes:
        """Return the sizes, from counts in memory."""
        engine, index = self.engine, self.engine.index
        engine.ready_queues.promote(engine.elapsed())
        delayed, oldest = engine.ready_queues.delayed, engine.oldest_due()
        return Sizes(index.live, delayed, index.held, index.dead, oldest_due=oldest)

    def _mails_by_state(self) -> Iterator[metrics.Sample]:
        if (sizes := self._scraped()) is not None:
            states = {"waiting": sizes.due, "delayed": sizes.delayed, "held": sizes.held}
            for state, count in {**states, "dead": sizes.dead_letters or 0}.items():
                yield (*self._labels, state), count

    def _sample(self, number: Callable[[Sizes], float]) -> Iterator[metrics.Sample]:
        if (sizes := self._scraped()) is not None:
            yield self._labels, number(sizes)

    def _scraped(self) -> Sizes | None:
        """Return the sizes for a scrape; None: they are not known now."""
        if not self.engine.indexed.is_set():
            return None
        if get_ident() == self._thread:
            return self._sizes()
        # The server of a program's own metrics has threads, and to count changes the queues that
        # consumers take from: a mail could be dropped between a look at it and its removal.
        sizes: Future[Sizes] = Future()
        try:
            self._loop.call_soon_threadsafe(lambda: sizes.set_result(self._sizes()))
            return sizes.result(MAX_SCRAPE_SECONDS)
        except (RuntimeError, TimeoutError):  # the loop is closed, or busy
            return None

    def _oldest_seconds(self, sizes: Sizes) -> float:
        if sizes.oldest_due is None:
            return 0
        return max(0.0, (self.engine.clock.now() - sizes.oldest_due).total_seconds())

    async def ages(self) -> Mapping[str, Mapping[timedelta, int]]:
        engine = self.engine
        await engine.indexed.wait()
        engine.check()
        now = engine.clock.elapsed()
        if self._ages is None or now - self._ages[0] > administration.FRESH:
            self._ages = (now, engine.index.ages(engine.now_us()))
        return self._ages[1]

    async def change(self, operation: Operation, selector: Selector) -> int:
        events = await self._find_events(operation)
        return await administration.change(self.engine, operation, selector, events)

    async def purge(self) -> int:
        return await administration.change(self.engine, Operation.REMOVE, Selector.all())

    async def republish(self, older_than: timedelta) -> int:
        """Nothing: there is no broker that could have lost anything."""
        self.engine.check()
        return 0

    async def maintain(self) -> None:
        await self.engine.indexed.wait()
        await self.maintenance.round()
        if discarded := await administration.discard_old_dead_letters(self.engine):
            metrics.EXPIRED.labels(*self._labels).inc(discarded)

    async def settle(self) -> None:
        """Make durable what is written, so that those who wait for that get their answers."""
        with suppress(PostroadError):  # a store that has stopped answers each of them by its error
            for lane in list(self.engine.lanes.values()):
                await lane.commit(lane.end)

    async def close(self) -> None:
        metrics.end_samples()
        await self.engine.close()  # first: the keeper's file may be in a thread's hands
        await self.maintenance.close()
