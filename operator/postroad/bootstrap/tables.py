"""Creates missing tables for a queue without an operator, which computes their options itself."""

from __future__ import annotations

from datetime import timedelta

from postroad.bootstrap.cluster import ClusterServers
from postroad.domain.delivery.retries import DEFAULT_LANES
from postroad.domain.queues.lifetimes import lifetimes_of
from postroad.ports.view import TableOptions

ROW_LIFETIME = timedelta(days=14)
LONGEST_SLICE = timedelta(hours=1)

MOST_REPLICAS = 3
"""Copies of a row; fewer where the data center has not as many nodes."""


async def create_tables(servers: ClusterServers) -> None:
    """Create the keyspace and tables where there are none; leave existing ones as they are.
    Raises: ViewError, CredentialsRefused."""
    views = servers.views()
    if await views.exists():
        return
    lifetimes = lifetimes_of(ROW_LIFETIME, [LONGEST_SLICE], max(DEFAULT_LANES))
    replicas = min(MOST_REPLICAS, await views.local_nodes())
    await views.create(
        TableOptions(
            replication={
                "class": "NetworkTopologyStrategy",
                servers.local_datacenter: str(replicas),
            },
            row_lifetime=lifetimes.row_lifetime,
            compaction_window=lifetimes.compaction_window,
            gc_grace=lifetimes.gc_grace,
        )
    )
