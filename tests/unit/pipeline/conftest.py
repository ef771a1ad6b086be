"""A queue in memory, and what happens to its view beside an archive."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.archive_story import Story
from support.in_memory_cluster import InMemoryCluster


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    cluster = InMemoryCluster()
    yield cluster
    await cluster.close()


@pytest.fixture
async def story(cluster: InMemoryCluster) -> Story:
    return Story(cluster, await cluster.start())
