"""The record, at a server, of which QueueCluster uses one of its objects."""

from __future__ import annotations

from typing import Protocol

from postroad.domain.servers.claims import Claim, Claimant


class ClaimRecord(Protocol):
    """The claim on one object: a keyspace, a queue of RabbitMQ, or a bucket. Raises: ServerError of
    its server."""

    async def claim(self, claimant: Claimant) -> Claim | None:
        """Claim the object unless it is claimed; return the claim that holds. Of several claimants
        at once the same one wins for all. None: the object does not exist yet, and holds none.
        Idempotent, durable."""
        ...

    async def transfer(self, found: Claim, claimant: Claimant) -> Claim:
        """Replace a claim, if it is the one found; return the claim that holds then."""
        ...

    async def release(self, claimant: Claimant) -> None:
        """Remove a claim, if it is this claimant's. Idempotent."""
        ...
