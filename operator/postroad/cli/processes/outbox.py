"""An intake with an outbox: it takes mail as soon as its own store is open, and forwards it once
the servers of the queue have answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast
from urllib.parse import quote, urlsplit

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.batching import together
from postroad.bootstrap import lock_of
from postroad.cli.processes import events, long_running
from postroad.cli.processes.long_running import INTAKE_MAINTENANCE_INTERVAL
from postroad.domain.queues.names import QueueName
from postroad.errors import InvalidSettings, StoreInUse
from postroad.intake.outbox.forwarder import Forwarder
from postroad.intake.outbox.outbox import Outbox, QueueBehind
from postroad.intake_settings.outbox import FileOutbox, OutboxUse
from postroad.settings import Settings


@asynccontextmanager
async def process_with_outbox(
    settings: Settings, url: str, section: FileOutbox, *, create: bool
) -> AsyncIterator[tuple[long_running.Process, Outbox] | None]:
    """Open the store of an outbox, and forward what it holds meanwhile; at the end, forward the
    last of it for up to the drain time. Yields None as `process` does. Raises: InvalidSettings,
    StoreInUse, permanent errors of `open_queue`, of either queue."""
    name = _name_of(url)
    store = f"embedded://{quote(str(section.directory))}"
    clock, randomness = MachineClock(), SystemRandomness()
    async with long_running.process(settings, store, create=True) as this:
        if this is None:
            yield None
            return
        if lock_of(this.queue) is None:
            raise StoreInUse(
                f"another process owns the outbox {section.directory}",
                hint="stop it, or give each intake a directory of its own",
            )
        is_first = section.when is OutboxUse.FIRST
        outbox = Outbox(name, this.queue, section.size, clock, randomness, is_first=is_first)
        forwarder = Forwarder(outbox, clock, randomness)
        running = asyncio.create_task(_run(this, settings, url, outbox, forwarder, create=create))
        running.add_done_callback(lambda _: this.end())
        try:
            async with long_running.background_maintenance(this, INTAKE_MAINTENANCE_INTERVAL):
                yield this, outbox
            if not running.done():
                await forwarder.drain(this.drain_within)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


def _name_of(url: str) -> str:
    """Return the name of the queue behind an outbox. Raises: InvalidSettings."""
    parts = urlsplit(url)
    if parts.scheme != "distributed":
        raise InvalidSettings(
            f"an outbox goes before a queue of servers, and {url!r} has none",
            hint="leave out `outbox`: the directory itself takes mail while all servers are away",
        )
    return str(QueueName.parse(parts.netloc))


async def _run(
    this: long_running.Process,
    settings: Settings,
    url: str,
    outbox: Outbox,
    forwarder: Forwarder,
    *,
    create: bool,
) -> None:
    """Forward until cancelled, from the moment when the queue is open. Raises: permanent errors of
    `open_queue`; the error that stopped the store."""
    async with together() as tasks:
        tasks.create_task(forwarder.run())
        tasks.create_task(_open(this, settings, url, outbox, create=create))


async def _open(
    this: long_running.Process, settings: Settings, url: str, outbox: Outbox, *, create: bool
) -> None:
    queue = await long_running.open_patiently(settings, url, create=create, stop=this.stop)
    if queue is None:
        return
    async with queue, events.noting(this, settings.worker.delivery_file, queue) as noted:
        outbox.opened(cast("QueueBehind", queue), noted)
        await long_running.run_maintenance(
            queue, MachineClock(), SystemRandomness(), INTAKE_MAINTENANCE_INTERVAL
        )
