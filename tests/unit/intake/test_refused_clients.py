"""A client that is refused, and reads nothing, holds no other one up."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from threading import Thread
from typing import cast

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.intake.clients import ClientLimits, Clients
from postroad.intake.context import IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.server import Listening, SmtpServer
from postroad.ports.mail_queue import MailQueue
from support.recording_queue import RecordingQueue

LONG = 30
"""Seconds that pass only where the intake waits for the client."""


def full_connection() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection on which no octet more goes out to the client."""
    served, client = socket.socketpair()
    with suppress(BlockingIOError):
        while True:
            served.send(bytes(1 << 16), socket.MSG_DONTWAIT)
    return served, client


async def test_the_intake_waits_for_no_client_that_it_refuses() -> None:
    context = IntakeContext(
        cast("MailQueue", RecordingQueue()),
        Offer("intake.example", 1000),
        MachineClock(),
        SystemRandomness(),
    )
    server = SmtpServer(context, clients=Clients(ClientLimits(sessions=0)))
    served, client = full_connection()
    listener = Listening(context, is_tls=False)
    refusing = Thread(target=server._welcome, args=(served, "192.0.2.1", listener))

    refusing.start()
    await asyncio.to_thread(refusing.join, LONG)
    waits = refusing.is_alive()
    client.close()  # ends a wait
    refusing.join()

    assert not waits
    assert served.fileno() == -1, "it closed the connection"
