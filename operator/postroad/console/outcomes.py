"""Outcomes of workers as they happen: one reader of a queue, for all who follow it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

from postroad.console.queues import ConsoleQueue
from postroad.domain.delivery.shown import SeenOutcomes
from postroad.errors import PostroadError
from postroad.ports.clock import Clock
from postroad.ports.delivery import SharedState, Topic
from postroad.ports.mail_queue import MailQueue
from postroad.telemetry.logs import logger

_log = logger("console")

LOOK_EVERY = timedelta(seconds=1)

ASK_EVERY, ASKED_FOR = timedelta(seconds=10), timedelta(seconds=30)
"""Workers publish their outcomes for so long after a console has asked for them."""

MAX_KEPT = 1000
"""Outcomes of a queue in memory: who follows it more slowly misses some."""

GOODBYE_SECONDS = 5.0


FeedPlace = tuple[int, int]
"""Outcomes of a feed, and those that it missed, up to where a follower has read."""


class OutcomeFeed:
    """The outcomes of one queue since it is followed. `changed` wakes those who follow;
    `has_ended`: nothing is read any more."""

    def __init__(self, shared_state: SharedState, clock: Clock) -> None:
        self._shared, self._clock, self._name = shared_state, clock, uuid4().hex
        self._kept = deque[Mapping[str, Any]](maxlen=MAX_KEPT)
        self.place: FeedPlace = (0, 0)
        self.changed = asyncio.Condition()
        self.followers, self.has_ended = 0, False

    def since(self, place: FeedPlace) -> tuple[list[Mapping[str, Any]], int]:
        """Return the outcomes behind a place, and how many more there were."""
        new = self.place[0] - place[0]
        kept = list(self._kept)[-new:] if new else []
        return kept, new - len(kept) + self.place[1] - place[1]

    async def read(self) -> None:
        """Read what workers publish, until cancelled, or an error that no server makes, with which
        the streams of its followers end. While the shared state is away, nothing new is there; what
        workers could not show meanwhile is missed."""
        seen, asked = SeenOutcomes(), None
        try:
            while True:
                with suppress(PostroadError):
                    now = self._clock.elapsed()
                    if asked is None or now - asked >= ASK_EVERY:
                        await self._shared.publish(Topic.WATCHERS, self._name, "", ASKED_FOR)
                        asked = now
                    await self._take(*seen.take(await self._shared.published(Topic.OUTCOMES)))
                await self._clock.sleep(LOOK_EVERY)
        except Exception:
            _log.exception("outcomes are read no longer")
        finally:
            self.has_ended = True
            async with self.changed:
                self.changed.notify_all()
            with suppress(PostroadError):
                await self._shared.take_down(Topic.WATCHERS, self._name)

    async def _take(self, lines: list[Mapping[str, Any]], missed: int) -> None:
        if not lines and not missed:
            return
        self._kept.extend(lines)
        self.place = (self.place[0] + len(lines), self.place[1] + missed)
        async with self.changed:
            self.changed.notify_all()


class OutcomeFeeds:
    """The feeds of a console, of the queues that are followed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._feeds: dict[MailQueue, tuple[OutcomeFeed, asyncio.Task[None]]] = {}

    @asynccontextmanager
    async def follow(self, on: ConsoleQueue) -> AsyncIterator[OutcomeFeed]:
        """Follow a queue, which has a shared state; its outcomes are read meanwhile."""
        queue = on.queue
        assert queue.shared_state is not None
        if queue not in self._feeds or self._feeds[queue][0].has_ended:
            made = OutcomeFeed(queue.shared_state, self._clock)
            reading = asyncio.create_task(made.read(), name=f"outcomes of {on.name}")
            self._feeds[queue] = made, reading
        feed, reading = self._feeds[queue]
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                if self._feeds.get(queue) == (feed, reading):  # no other took its place
                    del self._feeds[queue]
                reading.cancel()
                await asyncio.wait({reading}, timeout=GOODBYE_SECONDS)
