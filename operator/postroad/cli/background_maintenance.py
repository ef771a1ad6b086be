"""Maintenance of a queue while a command serves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from postroad.adapters.machine.clocks import MachineClock, SystemRandomness
from postroad.cli.long_running import Process
from postroad.worker.maintenance import EVERY, run_maintenance

SELDOM = timedelta(minutes=10)
"""For a process whose work is another: often enough where nobody delivers."""


@asynccontextmanager
async def background_maintenance(this: Process, every: timedelta = EVERY) -> AsyncIterator[None]:
    """Keep the process' queue up until the process is to end: no round delays its last mails."""
    running = asyncio.create_task(
        run_maintenance(this.queue, MachineClock(), SystemRandomness(), every)
    )
    stopping = asyncio.create_task(this.stop.wait())
    stopping.add_done_callback(lambda _: running.cancel())
    try:
        yield
    finally:
        stopping.cancel()
        await asyncio.wait([running, stopping])
