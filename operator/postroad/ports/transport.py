"""How a worker transmits a mail to the next hop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

from postroad.domain.mail import Envelope, Outcome
from postroad.domain.shapes import Shape

FindShape = Callable[[], Awaitable[Shape | None]]
"""Returns the shape that acceptance found, if it is known: `Item.shape`."""


async def not_known() -> Shape | None:
    """Return the shape of a content that acceptance did not examine: None."""
    return None


class Transport(Protocol):
    """Transmits mails to one kind of next hop. Safe to use concurrently."""

    async def transmit(
        self,
        envelope: Envelope,
        content: AsyncIterator[bytes],
        size_bytes: int,
        shape: FindShape = not_known,
    ) -> Mapping[str, Outcome]:
        """Try to hand over the mail; return an outcome for every recipient that was tried, at least
        for one. Recipients beyond what the next hop takes at a time are left out: they are to be
        transmitted again at once. `shape` is asked at most once, before the content is read.

        Failures of the next hop are outcomes (deferred when in doubt), not errors. An outcome of
        `delivered` is only given on the next hop's own positive reply after the last byte.
        """
        ...

    async def close(self) -> None:
        """Close connections. Idempotent."""
        ...
