"""Work that bears a busy server, for cases that are not about speed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from postroad.errors import PostroadError

T = TypeVar("T")

ATTEMPTS = 60


async def insist(work: Callable[[], Awaitable[T]]) -> T:
    """Try again what a busy server refused or did not answer."""
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
    """Do it again and again, until cancelled."""
    while True:
        await insist(work)
        await asyncio.sleep(seconds)
