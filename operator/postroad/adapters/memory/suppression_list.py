"""The suppression lists of a queue in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from postroad.adapters.memory.fault_injection import FaultInjector
from postroad.domain.delivery.suppressed import SuppressedAddress, SuppressedBy, strongest

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
