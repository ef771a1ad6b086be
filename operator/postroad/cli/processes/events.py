"""Events of a process to programs outside, by what a file of delivery has now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.bootstrap import shared_state_of
from postroad.bootstrap.events import event_spool_of, open_sink
from postroad.bootstrap.followed_file import FollowedFile
from postroad.cli.processes.long_running import Process, following
from postroad.delivery_settings.delivery import DeliverySettings
from postroad.delivery_settings.events import EventStream
from postroad.delivery_settings.files import read_delivery
from postroad.domain.delivery.events import EventRule
from postroad.domain.smtp.bounces import use_rules
from postroad.errors import PostroadError
from postroad.event_log.spooled import SpooledEvents
from postroad.ports.delivery import SharedState, Topic
from postroad.ports.events import EventSink, EventSpool
from postroad.ports.mail_queue import MailQueue
from postroad.settings import Settings
from postroad.telemetry.metrics import DELIVERY_READS, DELIVERY_REFUSED
from postroad.worker.event_sender import EventSender
from postroad.worker.sites.control import SharedStateUse

MAX_LAST_FLUSH = 5.0
"""Seconds, at the end of a process."""

PUBLISHED_FOR = timedelta(days=14)
"""A queue without a worker keeps its events for so long, too."""

PUBLISH_EVERY, PUBLISH_AGAIN = 3600.0, 10.0
"""Seconds; the second after a failure."""


def rules_of(streams: Sequence[EventStream]) -> tuple[EventRule, ...]:
    return tuple(each.rule() for each in streams)


def events_of(
    this: Process, streams: Sequence[EventStream], queue: MailQueue | None = None
) -> SpooledEvents | None:
    """Return the events of a process, which its intake and its worker share; None: its queue keeps
    none. `queue`: of which they are, if it is not the process' own. Raises: InvalidSettings where
    there are streams all the same."""
    queue = queue or this.queue
    if this.events is None and (streams or queue.event_spool is not None):
        this.events = SpooledEvents(event_spool_of(queue), rules_of(streams), queue.name)
    return this.events


class EventSenders:
    """The senders of all streams, each in a task."""

    def __init__(
        self, this: Process, open_sink: Callable[[EventStream, EventSpool], EventSink]
    ) -> None:
        self._this, self._open_sink = this, open_sink
        self._running: dict[EventStream, asyncio.Task[None]] = {}

    def use(self, streams: Sequence[EventStream]) -> None:
        """Send events of these streams from now on. Raises: InvalidSettings; nothing is changed
        then."""
        queue, clock = self._this.queue, MachineClock()
        added = [each for each in streams if each not in self._running]
        opened = [(each, self._open_sink(each, event_spool_of(queue))) for each in added]
        for gone in self._running.keys() - set(streams):
            self._running.pop(gone).cancel()
        for stream, sink in opened:
            sender = EventSender(
                queue.name, stream.name, event_spool_of(queue), sink, clock, SystemRandomness()
            )
            task = asyncio.create_task(sender.run(), name=f"events {stream.name}")
            self._running[stream] = task

    async def close(self) -> None:
        for each in self._running.values():
            each.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)


class PublishedStreams:
    """The streams on the shared state: who changes waiting mails makes their events by them."""

    def __init__(self, shared_state: SharedState) -> None:
        self._shared_state = shared_state
        self._rules: Sequence[EventRule] = ()
        self._published = set[str]()
        """By this process: other workers may have a newer file, or an older one, or none."""

        self._use = SharedStateUse()
        self._changed = asyncio.Event()

    def use(self, rules: Sequence[EventRule]) -> None:
        self._rules = rules
        self._changed.set()

    async def run(self) -> None:
        """Publish them until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            pause: float | None = PUBLISH_AGAIN
            with self._use.unless_away():
                await self._publish()
                pause = PUBLISH_EVERY if self._rules else None
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            self._changed.set()

    async def _publish(self) -> None:
        rules = {each.name: each.text() for each in self._rules}
        for gone in self._published - rules.keys():
            await self._shared_state.take_down(Topic.STREAMS, gone)
            self._published.remove(gone)
        for name, text in rules.items():
            self._published.add(name)
            await self._shared_state.publish(Topic.STREAMS, name, text, PUBLISHED_FOR)


@asynccontextmanager
async def sending(
    this: Process, settings: Settings, file: Path | None, streams: Sequence[EventStream]
) -> AsyncIterator[Callable[[Sequence[EventStream]], None]]:
    """Send the events of streams meanwhile; what is returned takes others up. `file`: of delivery.
    Raises: InvalidSettings."""
    folder = Path() if file is None else file.parent
    senders = EventSenders(this, partial(open_sink, folder=folder, ca_file=settings.ca_file))
    published = PublishedStreams(shared_state_of(this.queue))

    def use(streams: Sequence[EventStream]) -> None:
        senders.use(streams)
        published.use(rules_of(streams))
        if this.events is not None:
            this.events.rules = rules_of(streams)

    use(streams)
    publishing = asyncio.create_task(published.run(), name="streams on the shared state")
    try:
        yield use
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        await senders.close()
        if this.events is not None:
            with suppress(TimeoutError, PostroadError):
                async with asyncio.timeout(MAX_LAST_FLUSH):
                    await this.events.flush()


class FollowedDecisions(FollowedFile[DeliverySettings]):
    """A file of delivery, for a process that delivers nothing."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, "delivery", DELIVERY_REFUSED, DELIVERY_READS)

    def _read(self) -> DeliverySettings:
        self._watch({self.file})
        return read_delivery(self.file)


@asynccontextmanager
async def noting(
    this: Process, file: Path | None, queue: MailQueue | None = None
) -> AsyncIterator[SpooledEvents | None]:
    """Return the events of an intake, which follow the file of delivery, as its rules of the
    suppression list and of bounces do. `queue`: as for `events_of`. Raises: InvalidSettings."""
    if this.events is not None or file is None:
        yield this.events
        return
    followed = FollowedDecisions(file)
    events = events_of(this, followed.current.events, queue)

    def use(decided: DeliverySettings) -> None:
        use_rules(decided.bounce_rules)
        this.suppression = decided.suppression_rules()
        if events is not None:
            events.rules = rules_of(decided.events)

    use(followed.current)

    async with following(this, followed, use):
        yield events
