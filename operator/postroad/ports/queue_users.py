"""The users at the broker that are made for the programs of one mail queue each.

Their rights are those that these programs need, and no others. Source: ADR 0042.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from postroad.domain.servers.queue_users import QueueUser


class QueueUsers(Protocol):
    """Queue users in one vhost of a broker. All other users stay as they are.

    Every method raises: BrokerUnavailable, BrokerRefused, TlsRefused, CredentialsRefused where the
    login of this process may not make users.
    """

    async def made_for(self, token: str) -> Collection[QueueUser]:
        """Return the queue users of one QueueCluster, whatever their rights are."""
        ...

    async def has_rights(self, user: QueueUser) -> bool | None:
        """Return whether a user has exactly the rights that its queue's programs need; None where
        there is no such user."""
        ...

    async def give(self, user: QueueUser, password: str) -> None:
        """Make a user, or replace its password and its rights. Connections that are open go on.
        Idempotent, durable."""
        ...

    async def delete(self, user: QueueUser) -> None:
        """Delete a user; the broker closes its connections. Idempotent, durable."""
        ...
