"""Upkeep of a queue while a command serves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad.adapters.machine.clocks import MachineChance, MachineClock
from postroad.cli.serving import Process
from postroad.worker.upkeep import keep_up


@asynccontextmanager
async def upkeep(this: Process) -> AsyncIterator[None]:
    """Keep the process' queue up meanwhile."""
    running = asyncio.create_task(keep_up(this.queue, MachineClock(), MachineChance()))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])
