"""A post office with its servers in memory, and one process of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.in_memory_cluster import Post, Process


@pytest.fixture
async def post() -> AsyncIterator[Post]:
    post = Post()
    yield post
    await post.close()


@pytest.fixture
async def process(post: Post) -> Process:
    return await post.start()
