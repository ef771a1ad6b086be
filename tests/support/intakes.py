"""An intake on loopback with rules for networks; the addresses of 127.0.0.0/8 are its clients'."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.intake.clients import ClientLimits, Clients, Rules
from postroad.intake.context import IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.server import SmtpServer
from postroad.ports.mail_queue import MailQueue
from support.recording_queue import RecordingQueue


@asynccontextmanager
async def an_intake(
    rules: Rules,
    host: str = "127.0.0.1",
    *,
    max_size_bytes: int = 1 << 20,
    client_limits: ClientLimits | None = None,
) -> AsyncIterator[tuple[RecordingQueue, int]]:
    """Give the queue of an intake and its port."""
    queue = RecordingQueue()
    context = IntakeContext(
        cast("MailQueue", queue),
        Offer("intake.example", max_size_bytes),
        MachineClock(),
        SystemRandomness(),
        rules=rules,
    )
    server = SmtpServer(context, clients=Clients(client_limits or ClientLimits()))
    await server.listen(host, 0)
    try:
        yield queue, server.port
    finally:
        await server.drain(timedelta(seconds=5))
