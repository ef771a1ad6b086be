"""How a worker hands a mail to the next hop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from postroad.domain.mail import Envelope, Outcome


class Transport(Protocol):
    """Transmits mails to one kind of next hop. Safe to use concurrently."""

    async def transmit(
        self, envelope: Envelope, content: AsyncIterator[bytes], size_bytes: int
    ) -> Mapping[str, Outcome]:
        """Try to hand over the mail; return an outcome for every recipient that was tried, at least
        for one. Recipients beyond what the next hop takes at a time are left out: they are to be
        transmitted again at once.

        Failures of the next hop are outcomes (deferred when in doubt), not errors. An outcome of
        `delivered` is only given on the next hop's own positive reply after the last byte.
        """
        ...

    async def close(self) -> None:
        """Close connections. Idempotent."""
        ...
