"""The shared state of a queue in memory.

The suppression lists of a queue in memory.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import timedelta

from postroad.adapters.memory.fault_injection import FaultInjector
from postroad.domain.delivery.suppressed import SuppressedAddress, SuppressedBy, strongest
from postroad.ports.clock import Clock
from postroad.ports.delivery import Topic

Entries = dict[tuple[Topic, str], tuple[str, timedelta]]
"""By topic and name: the text, and when its lifetime is over by the server's clock."""


class MemorySharedState:
    """The shared state of one queue (see the port). `clock` is the server's."""

    def __init__(self, entries: Entries, clock: Clock, faults: FaultInjector) -> None:
        self._entries, self._clock, self._faults = entries, clock, faults

    async def publish(self, topic: Topic, name: str, text: str, lifetime: timedelta) -> None:
        def effect() -> None:
            self._entries[topic, name] = text, self._clock.elapsed() + lifetime

        await self._faults("view", "publish_entry", effect)

    async def take_down(self, topic: Topic, name: str) -> None:
        await self._faults("view", "take_down", lambda: self._entries.pop((topic, name), None))

    async def published(self, topic: Topic) -> Mapping[str, str]:
        return (await self.published_about((topic,)))[topic]

    async def published_about(self, topics: Collection[Topic]) -> Mapping[Topic, Mapping[str, str]]:
        def effect() -> Mapping[Topic, Mapping[str, str]]:
            now = self._clock.elapsed()
            found = {topic: dict[str, str]() for topic in topics}
            for (topic, name), (text, until) in self._entries.items():
                if topic in found and until > now:
                    found[topic][name] = text
            return found

        return await self._faults("view", "published", effect)


Lists = dict[tuple[str, bytes, SuppressedBy], SuppressedAddress]
"""By tenant, token and what put the address there."""


class MemorySuppressionList:
    """The lists of one queue (see the port)."""

    def __init__(self, lists: Lists, faults: FaultInjector) -> None:
        self._lists, self._faults = lists, faults

    async def add(self, tenant: str, entries: Sequence[SuppressedAddress]) -> None:
        def effect() -> None:
            self._lists.update({(tenant, each.token, each.by): each for each in entries})

        await self._faults("view", "suppress", effect)

    async def remove(self, tenant: str, tokens: Collection[bytes]) -> None:
        def effect() -> None:
            for token in tokens:
                for by in SuppressedBy:
                    self._lists.pop((tenant, token, by), None)

        await self._faults("view", "unsuppress", effect)

    async def find(
        self, tenant: str, tokens: Collection[bytes]
    ) -> Mapping[bytes, SuppressedAddress]:
        def effect() -> Mapping[bytes, SuppressedAddress]:
            keys = ((tenant, token, by) for token in tokens for by in SuppressedBy)
            return strongest(self._lists[key] for key in keys if key in self._lists)

        return await self._faults("view", "suppressed", effect)

    async def entries(self, tenant: str) -> AsyncIterator[SuppressedAddress]:
        def effect() -> list[SuppressedAddress]:
            return [each for (of, *_), each in sorted(self._lists.items()) if of == tenant]

        for each in await self._faults("view", "suppressed_entries", effect):
            yield each
