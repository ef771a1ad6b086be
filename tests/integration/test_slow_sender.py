"""A sender that takes for ever holds nothing that others need (SP-13): no thread, lock or batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from contract.queue_harness import plain_mail
from postroad import Mail
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.disk.files import DiskFiles, ThreadPool
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.opening import describe, open_store
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.owner import OwnedQueue
from postroad.intake.context import IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.server import SmtpServer
from postroad.ports.mail_queue import MailQueue

OTHERS = 100


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[OwnedQueue]:
    """A store with a single thread for spool files and a single one for the log."""
    files = DiskFiles()
    layout, options = describe(files, tmp_path / "store", StoreOptions(), create=True)
    clock, randomness = MachineClock(), SystemRandomness()
    threads = ThreadPool(1, "log"), ThreadPool(1, "mail")
    engine = Engine(files, layout, options, clock, randomness, *threads)
    queue = OwnedQueue("slow", engine, await open_store(engine))
    await queue.maintenance.recovering
    yield queue
    await queue.close()


async def test_a_stream_that_never_ends_delays_no_other_client(queue: OwnedQueue) -> None:
    """A hundred mails are accepted and handed out between two chunks of a mail that goes on."""
    has_begun, goes_on = asyncio.Event(), asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        yield b"Subject: slow\r\n\r\n"
        has_begun.set()
        await goes_on.wait()
        yield b"at last\r\n"

    slow = asyncio.create_task(queue.enqueue(Mail("a@x.example", ("b@y.example",), content())))
    await has_begun.wait()
    await asyncio.gather(*(queue.enqueue(plain_mail(f"{number}")) for number in range(OTHERS)))
    consumer = queue.consumer(OTHERS + 1)
    for _ in range(OTHERS):
        await (await consumer.next()).done()
    await queue.maintenance.round()

    assert not slow.done()
    goes_on.set()
    await slow
    assert await (await consumer.next()).content() == b"Subject: slow\r\n\r\nat last\r\n"


async def test_sessions_in_the_midst_of_data_keep_no_session_waiting(queue: OwnedQueue) -> None:
    """A hundred clients get replies while as many others have sent half a line and stand still."""
    server = await _listening(cast("MailQueue", queue))
    slow = [await _in_data(server.port) for _ in range(OTHERS)]

    answers = await asyncio.gather(*(_hand_in(server.port) for _ in range(OTHERS)))

    assert {answer[:3] for answer in answers} == {b"250"}
    assert (await queue.size()).size == OTHERS
    for reader, writer in slow:
        writer.write(b"llo\r\n.\r\n")
        assert (await reader.readline())[:3] == b"250"
        writer.close()
    assert (await queue.size()).size == 2 * OTHERS
    await server.drain(timedelta(seconds=5))


async def _listening(queue: MailQueue) -> SmtpServer:
    offer = Offer("intake.example", 1 << 20)
    server = SmtpServer(IntakeContext(queue, offer, MachineClock(), SystemRandomness()))
    await server.listen("127.0.0.1", 0)
    return server


async def _in_data(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a session that has sent half a line of its mail."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readline()
    for command in (b"HELO x.example", b"MAIL FROM:<a@x.example>", b"RCPT TO:<b@y.example>"):
        writer.write(command + b"\r\n")
        assert (await reader.readline())[:3] == b"250"
    writer.write(b"DATA\r\n")
    assert (await reader.readline())[:3] == b"354"
    writer.write(b"Subject: slow\r\n\r\nHe")
    return reader, writer


async def _hand_in(port: int) -> bytes:
    """Hand in a mail; return the answer."""
    reader, writer = await _in_data(port)
    writer.write(b"llo\r\n.\r\n")
    answer = await reader.readline()
    writer.close()
    return answer
