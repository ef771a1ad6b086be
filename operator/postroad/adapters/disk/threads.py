"""A pool of threads for blocking calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class ThreadPool:
    """At most `count` calls at a time, the rest in order."""

    def __init__(self, count: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(count, name)

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, work, *arguments)

    def close(self) -> None:
        self._executor.shutdown(wait=False)
