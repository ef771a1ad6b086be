"""The board of a queue in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from postroad.adapters.memory.fault_injection import FaultInjector
from postroad.ports.clock import Clock
from postroad.ports.delivery.board import Topic

Notes = dict[tuple[Topic, str], tuple[str, timedelta]]
"""By topic and name: the text, and when its lifetime is over by the server's clock."""


class MemoryBoard:
    """The board of one queue (see the port). `clock` is the server's."""

    def __init__(self, notes: Notes, clock: Clock, faults: FaultInjector) -> None:
        self._notes, self._clock, self._faults = notes, clock, faults

    async def post(self, topic: Topic, name: str, text: str, lifetime: timedelta) -> None:
        def effect() -> None:
            self._notes[topic, name] = text, self._clock.elapsed() + lifetime

        await self._faults("view", "post", effect)

    async def take_down(self, topic: Topic, name: str) -> None:
        await self._faults("view", "take_down", lambda: self._notes.pop((topic, name), None))

    async def posted(self, topic: Topic) -> Mapping[str, str]:
        return (await self.posted_about((topic,)))[topic]

    async def posted_about(self, topics: Collection[Topic]) -> Mapping[Topic, Mapping[str, str]]:
        def effect() -> Mapping[Topic, Mapping[str, str]]:
            now = self._clock.elapsed()
            found = {topic: dict[str, str]() for topic in topics}
            for (topic, name), (text, until) in self._notes.items():
                if topic in found and until > now:
                    found[topic][name] = text
            return found

        return await self._faults("view", "posted", effect)
