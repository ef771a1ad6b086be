"""Sends events to their sinks: those of one mail in order, those of others beside them.

A sink that is down gets one round of requests after ever longer pauses. What waits for a sink that
is down or slow is bounded: beyond that the oldest events are dropped, counted and logged.
Source: ADR 0089."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import NamedTuple

from postroad.batching import together
from postroad.errors import PostroadError
from postroad.ports.clock import Clock, Randomness
from postroad.ports.events import (
    MAX_AT_ONCE,
    MAX_WAITING,
    EventSink,
    EventSpool,
    SinkReply,
    SinkVerdict,
    WaitingEvent,
)
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import EVENTS, of_queue

_log = logger("events")

FIRST_PAUSE, MAX_PAUSE = timedelta(seconds=1), timedelta(minutes=5)

MAX_ASKED = timedelta(minutes=15)
"""Of a pause that a sink asks for: RabbitMQ takes back what is held for half an hour."""

MAX_HELD = timedelta(minutes=1)
"""For which the same events are tried: then others come behind those that are left."""

MAX_TRIES = 10
"""Rounds in which an event fails while others are taken; then it is dropped, because it would keep
back those behind it for ever."""

LOOK = timedelta(seconds=10)
"""Between two looks whether a stream is full, and between two log lines."""


class _Event(NamedTuple):
    event_id: str
    """Its id; empty for a body that is no event, which only others than postroad publish."""

    mail: str
    waiting: WaitingEvent

    @classmethod
    def of(cls, waiting: WaitingEvent) -> "_Event":
        try:
            document = json.loads(waiting.body)
            event_id, data = document["id"], document["data"]
            mail = str(data.get("name") or data.get("mail_id"))
            return cls(event_id if isinstance(event_id, str) else "", mail, waiting)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return cls("", "", waiting)


class EventSender:
    """Sends the events of one stream. `queue`: its name."""

    def __init__(
        self,
        queue: str,
        stream: str,
        spool: EventSpool,
        sink: EventSink,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._spool, self._sink, self._stream = spool, sink, stream
        self._clock, self._randomness = clock, randomness
        self._names = {"queue": queue, "stream": stream}
        self._labels = (*of_queue(queue), stream)
        self._pause, self._asked = FIRST_PAUSE, timedelta(0)
        self._is_down = False
        self._look_at = clock.elapsed() + LOOK
        self._tries = Counter[str]()
        self._unlogged, self._logged_at = 0, -LOOK

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                try:
                    async with aclosing(self._spool.batches(self._stream)) as batches:
                        async for batch in batches:
                            if not await self._send([_Event.of(each) for each in batch]):
                                break  # others come behind those that are given back
                except PostroadError as error:
                    _log.warning("events wait", **self._names, error=error.explain())
                except Exception:  # else a bug would end the stream without a word
                    _log.exception("unexpected error in a stream of events", **self._names)
                await self._clock.sleep(FIRST_PAUSE)
        finally:
            await self._sink.close()

    async def _send(self, left: Sequence[_Event]) -> bool:
        """Send a batch; return False where some of it is to come again."""
        begun = self._clock.elapsed()
        if foreign := [each for each in left if not each.event_id]:
            await self._drop(foreign, "refused", "no event")
            left = [each for each in left if each.event_id]
        while left:
            if await self._is_full():
                await self._drop(left, "full")
                return True
            left = await self._round(left)
            if left and self._is_down:
                await self._rest()
                if self._clock.elapsed() - begun > MAX_HELD:
                    return False
        return True

    @property
    def _is_to_look(self) -> bool:
        return self._clock.elapsed() >= self._look_at

    async def _is_full(self) -> bool:
        """Look whether the stream is full, when it is time; again at once where it was."""
        if not self._is_to_look:
            return False
        is_full = await self._spool.is_beyond(self._stream, MAX_WAITING)
        self._look_at = self._clock.elapsed() + (timedelta(0) if is_full else LOOK)
        return is_full

    async def _rest(self) -> None:
        """Wait after a round that failed, until the stream is full at most."""
        pause = self._pause * (1 + 0.1 * self._randomness.uniform())
        left = max(pause, min(self._asked, MAX_ASKED))
        self._pause = min(2 * self._pause, MAX_PAUSE)
        while left > timedelta(0) and not await self._is_full():
            await self._clock.sleep(min(left, LOOK))
            left -= LOOK

    async def _round(self, events: Sequence[_Event]) -> list[_Event]:
        """Send each event once, none after one has failed or when it is time to look; return those
        that are left."""
        mails: dict[str, list[_Event]] = {}
        for each in events:
            mails.setdefault(each.mail, []).append(each)
        waiting, taken = list(mails.values()), 0
        ended: set[str] = set()
        failed: dict[str, SinkReply] = {}

        async def work() -> None:
            nonlocal taken
            while waiting and not failed:
                for event in waiting.pop(0):
                    if self._is_to_look:
                        return
                    reply = await self._reply_to(event)
                    if reply.verdict is SinkVerdict.LATER:
                        failed[event.event_id] = reply
                        break
                    ended.add(event.event_id)
                    if reply.verdict is SinkVerdict.REFUSED:
                        await self._drop([event], "refused", reply.reason)
                        continue
                    taken += 1
                    await self._end(event, "sent")

        async with together() as tasks:  # else an event could be under way beside its repetition
            for _ in range(min(MAX_AT_ONCE, len(waiting))):
                tasks.create_task(work())
        self._note(failed)
        left = [each for each in events if each.event_id not in ended]
        return await self._without_hopeless(left, failed) if taken and failed else left

    async def _reply_to(self, event: _Event) -> SinkReply:
        try:
            return await self._sink.send(event.event_id, event.waiting.body)
        except Exception as error:  # else a bug would be tried each second, without a bound
            return SinkReply(SinkVerdict.LATER, type(error).__name__)

    def _note(self, failed: dict[str, SinkReply]) -> None:
        if bool(failed) != self._is_down:
            reasons = sorted({each.reason for each in failed.values()})
            if failed:
                _log.warning("a sink of events fails", **self._names, why=reasons)
            else:
                _log.info("a sink takes events again", **self._names)
        self._is_down = bool(failed)
        self._asked = max((each.pause for each in failed.values()), default=timedelta(0))
        if not failed:
            self._pause = FIRST_PAUSE
            self._tries.clear()
        EVENTS.labels(*self._labels, "delayed").inc(len(failed))

    async def _without_hopeless(
        self, left: list[_Event], failed: dict[str, SinkReply]
    ) -> list[_Event]:
        """Drop events that fail again and again beside others that are taken."""
        self._tries.update(each for each, reply in failed.items() if not reply.pause)
        hopeless = [each for each in left if self._tries[each.event_id] >= MAX_TRIES]
        if hopeless:
            await self._drop(hopeless, "refused", failed[hopeless[0].event_id].reason)
        return [each for each in left if each not in hopeless]

    async def _drop(self, events: Sequence[_Event], result: str, reason: str = "") -> None:
        self._unlogged += len(events)
        now = self._clock.elapsed()
        if now - self._logged_at >= LOOK:
            first = events[0].event_id
            _log.error(
                "events dropped",
                **self._names,
                count=self._unlogged,
                result=result,
                reason=reason,
                first=first,
            )
            self._unlogged, self._logged_at = 0, now
        for each in events:
            await self._end(each, result)

    async def _end(self, event: _Event, result: str) -> None:
        await event.waiting.done()
        EVENTS.labels(*self._labels, result).inc()
