"""A post office with its servers in memory, and one process of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.in_memory_cluster import InMemoryCluster, Process


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    cluster = InMemoryCluster()
    yield cluster
    await cluster.close()


@pytest.fixture
async def process(cluster: InMemoryCluster) -> Process:
    return await cluster.start()
