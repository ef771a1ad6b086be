"""Work on many mails: several at once, never all, begun in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16
"""Mails changed at the same time: enough to hide the servers' latency, too few to crowd out
deliveries."""

TRIES = 5
"""How often one mail is tried, with backoff, while the view does not answer: one timeout among
thousands of transactions must not end them all."""


async def count(items: AsyncIterator[T], work: Callable[[T], Awaitable[int]]) -> int:
    """Do `work` for every item; return the sum of its results, which may be true and false. Errors
    as in `results`."""
    total = 0
    async for each in results(items, work):
        total += each
    return total


async def each_of(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items of an iterable."""
    for each in items:
        yield each


async def results(
    items: AsyncIterator[T], work: Callable[[T], Awaitable[R]], at_once: int = AT_ONCE
) -> AsyncIterator[R]:
    """Do `work` for every item; yield its results as they come. The first error ends it and cancels
    what is under way, which every operation survives as it survives a stop between two steps."""
    running: set[asyncio.Future[R]] = set()
    done: set[asyncio.Future[R]] = set()
    try:
        async for item in items:
            if len(running) >= at_once:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    yield each.result()
            running.add(asyncio.ensure_future(work(item)))
        while running:
            done, running = await asyncio.wait(running)
            for each in done:
                yield each.result()
    finally:
        for each in running:
            each.cancel()
        if left := (*running, *done):  # retrieves each error, so that asyncio logs none
            await asyncio.gather(*left, return_exceptions=True)
