"""A Cassandra host freezes, and the driver has not noticed yet: the other hosts answer its
requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from integration.cluster.load import variables_of
from postroad import open_queue
from postroad.bootstrap.cluster import connect
from postroad.ports.servers import Servers
from postroad.settings import from_environment
from servers import fresh
from stack.clusters import Cluster

CHECKS = 6
"""More requests than hosts, so that the driver asks each host first for some of them."""


@pytest.fixture
async def servers(cluster: Cluster) -> AsyncIterator[Servers]:
    settings = from_environment(variables_of(cluster))
    async with open_queue(f"distributed://test.{fresh()}", create=True, settings=settings):
        servers = connect(settings)
        await servers.check()
        yield servers
        await servers.close()


async def test_host_that_freezes_fails_no_check_of_the_view(
    cluster: Cluster, servers: Servers
) -> None:
    await asyncio.to_thread(cluster.pause, "cassandra-2")
    try:
        found = await asyncio.gather(*(servers.check() for _ in range(CHECKS)))
    finally:
        await asyncio.to_thread(cluster.resume, "cassandra-2")
        await asyncio.to_thread(cluster.settled)

    assert [each["cassandra"].error for each in found] == [None] * CHECKS
