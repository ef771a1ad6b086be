"""The addresses that a queue does not mail, by tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Protocol

from postroad.domain.delivery.suppressed import SuppressedAddress


class SuppressionList(Protocol):
    """The lists of one queue. A tenant is empty for mail without one. All is durable when it
    returns, and seen by what begins afterwards, in each process. Raises: ServerError, StoreFailed,
    StoreFull, StoreDamaged."""

    async def add(self, tenant: str, entries: Sequence[SuppressedAddress]) -> None:
        """Put addresses on a list; the last entry with a token by an administrator counts, and the
        last one by refusals. What is broken off may have put some there. Expired entries may go."""
        ...

    async def remove(self, tenant: str, tokens: Collection[bytes]) -> None:
        """Take addresses off a list, all their entries. Idempotent."""
        ...

    async def find(
        self, tenant: str, tokens: Collection[bytes]
    ) -> Mapping[bytes, SuppressedAddress]:
        """Return the `strongest` entry of those that are on a list, which may be pending or have
        expired."""
        ...

    def entries(self, tenant: str) -> AsyncIterator[SuppressedAddress]:
        """Yield all entries of a list in the order of its tokens, in memory for a page of it at
        most. What changes meanwhile may be in it or not."""
        ...
