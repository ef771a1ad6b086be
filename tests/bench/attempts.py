"""Repeats calls that a busy server refused, in cases that do not measure speed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from postroad.errors import PostroadError

T = TypeVar("T")

ATTEMPTS = 60


async def insist(work: Callable[[], Awaitable[T]]) -> T:
    """Repeat the work until the server does it; one second between attempts."""
    for _ in range(ATTEMPTS):
        try:
            return await work()
        except PostroadError as error:
            if not error.transient:
                raise
            print(f"again after {type(error).__name__}", flush=True)
        await asyncio.sleep(1)
    return await work()


async def every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Repeat the work until cancelled."""
    while True:
        await insist(work)
        await asyncio.sleep(seconds)
