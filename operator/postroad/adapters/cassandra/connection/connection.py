"""The connection to a Cassandra cluster: made once, at the first use, in a thread.

It stands only when the clocks of the hosts agree, because the writes get their timestamps from
them. When a host is back that hung or went away, the driver reconnects by itself.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from cassandra.cluster import Cluster
from cassandra.cluster import Session as DriverSession
from cassandra.pool import Host

from postroad.adapters.cassandra.connection.access import Access, cluster_of
from postroad.adapters.cassandra.connection.clocks import HostClocks
from postroad.adapters.cassandra.connection.timestamps import Timestamps
from postroad.adapters.cassandra.connection.translation import translated
from postroad.batching import Shared
from postroad.errors import ServerError, ViewRefused, ViewUnavailable
from postroad.telemetry.logs import logger
from postroad.threaded_calls import ThreadedCalls

MOST_CONNECTING = 100
"""Clusters of which one process makes connections at a time."""

_CONNECTING = ThreadedCalls(MOST_CONNECTING)

_LOG = logger("cassandra")


class CassandraConnection:
    """A connection, shared by the requests of one session. Bound to one event loop at first use."""

    def __init__(
        self, access: Access, request_timeout: timedelta, connect_timeout: timedelta
    ) -> None:
        self._access = access
        self._request_timeout = request_timeout
        self._connect_timeout = connect_timeout
        self._connecting: Shared[DriverSession] = Shared()
        self._closed = False
        self.clocks = HostClocks(Timestamps(), access.local_datacenter)
        self.driver: DriverSession | None = None
        """The driver's session, while the connection stands."""

    async def connected(self) -> DriverSession:
        """Connect, unless the connection stands; calls at the same time share one attempt.
        Raises: ViewUnavailable, ViewRefused, CredentialsRefused."""
        if self._closed:
            raise _closed()
        if self.driver is not None:
            return self.driver
        return await self._connecting.get(self._connect)

    async def local_hosts(self) -> list[Host]:
        """Return the hosts of the local data center. Errors as `connected`."""
        hosts = (await self.connected()).cluster.metadata.all_hosts()
        return [host for host in hosts if host.datacenter == self._access.local_datacenter]

    async def close(self) -> None:
        """Close the connection for good. Idempotent."""
        self._closed = True
        await self._connecting.end()
        driver, self.driver = self.driver, None
        if driver is not None:
            await asyncio.to_thread(driver.cluster.shutdown)

    async def _connect(self) -> DriverSession:
        """Connect in a thread: already to resolve the contact points' names may take a minute. The
        driver asks one contact point after the other: the wait is at most their number times the
        connect timeout."""
        if _CONNECTING.is_full:
            raise ViewUnavailable(
                f"{MOST_CONNECTING} connections to Cassandra are being made, and none more",
                hint="look for clusters whose names are not resolved, or that do not answer",
            )
        try:
            driver = await _CONNECTING.run(self._connect_in_thread)
        except Exception as error:
            raise translated(error) from error
        if self._closed:  # `close` may have been broken off while it waited for this
            await asyncio.to_thread(driver.cluster.shutdown)
            raise _closed()
        _LOG.debug("connected to Cassandra", hosts=len(driver.cluster.metadata.all_hosts()))
        self.driver = driver
        return driver

    def _connect_in_thread(self) -> DriverSession:
        cluster = cluster_of(
            self._access, self._request_timeout, self._connect_timeout, self.clocks
        )
        try:
            return self._connect_to(cluster)
        except Exception as error:
            refusal = self._unknown_datacenter(cluster)
            cluster.shutdown()
            if refusal is None or isinstance(error, ServerError):
                raise
            raise refusal from error

    def _connect_to(self, cluster: Cluster) -> DriverSession:
        # All pools: with one host alone, a wrong clock would be the agreed time.
        driver = cluster.connect(wait_for_all_pools=True)
        self.clocks.read(driver)
        if not self.clocks.timestamps.is_known:
            raise ViewUnavailable(
                "the clocks of the Cassandra hosts disagree, so that no write can be stamped",
                hint="synchronise the clocks of the Cassandra hosts (NTP)",
            )
        return driver

    def _unknown_datacenter(self, cluster: Cluster) -> ViewRefused | None:
        """Return the refusal of a misspelt data center: no host is local then, and the driver
        reports only that all are away."""
        known = {str(host.datacenter) for host in cluster.metadata.all_hosts() if host.datacenter}
        if not known or self._access.local_datacenter in known:
            return None
        return ViewRefused(
            f"Cassandra has no data center {self._access.local_datacenter!r}",
            hint=f"it has {', '.join(sorted(known))}",
        )


def _closed() -> ViewUnavailable:
    return ViewUnavailable("the session with Cassandra is closed")
