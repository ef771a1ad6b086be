"""Events that wait in memory."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from postroad.adapters.memory.steps import ProcessSteps, step
from postroad.domain.delivery.events import StreamEvent
from postroad.errors import InvalidSettings
from postroad.ports.events import MAX_BATCH, EventSink, WaitingEvent

LOOK_SECONDS = 0.02


class MemoryStreams:
    """The events of one queue by stream, each under a number, as they outlive every process."""

    def __init__(self) -> None:
        self.waiting: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
        self.sent_now: set[str] = set()
        self.kept = 0


class MemoryEventSpool:
    """`ports.events.EventSpool` of one process."""

    def __init__(self, streams: MemoryStreams, steps: ProcessSteps) -> None:
        self._streams, self.steps = streams, steps

    @step("broker", "append events")
    def append(self, events: Sequence[StreamEvent]) -> None:
        for stream, _, body in events:
            self._streams.kept += 1
            self._streams.waiting[stream][self._streams.kept] = body

    async def batches(self, stream: str) -> AsyncGenerator[Sequence[WaitingEvent], None]:
        while stream in self._streams.sent_now:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        self._streams.sent_now.add(stream)
        try:
            while True:
                waiting = self._streams.waiting[stream]
                if oldest := list(waiting.items())[:MAX_BATCH]:
                    yield [
                        WaitingEvent(body, partial(self._end, stream, at)) for at, body in oldest
                    ]
                else:
                    await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._streams.sent_now.discard(stream)

    @step("broker", "end event")
    def _end(self, stream: str, at: int) -> None:
        self._streams.waiting[stream].pop(at, None)

    def exchange(self, name: str) -> EventSink:
        raise InvalidSettings(
            "a queue in memory has no RabbitMQ", hint="give webhook or file in place of amqp"
        )

    @step("broker", "count events")
    def is_beyond(self, stream: str, most: int) -> bool:
        return len(self._streams.waiting[stream]) > most
