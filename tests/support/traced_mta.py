"""An MTA in one process over a store, for a test that counts its calls: `traced_mta STORE CLIENTS
MAILS`.

With a fourth word, `receiver`, mails are stored by a handle that shares the owner's lock, as the
receivers of an MTA do it.
It warms up; then in the phase `accept` clients hand in mails, in `deliver` these go out, in `both`
mails come in and go out, and in `away` mails that were deferred before are tried again while their
next hop refuses connections.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import structlog

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.bootstrap.embedded_store import open_directory
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.selection import Selector
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.embedded.log.options import StoreOptions
from postroad.intake.context import IntakeContext
from postroad.intake.dialogue import Offer
from postroad.intake.server import SmtpServer
from postroad.ports.mail_queue import MailQueue
from support.disk_calls import PHASE
from support.ports import free_port
from support.sink import Sink
from support.workers import a_consumer

HOUR = timedelta(hours=1)
OPTIONS = StoreOptions(steps=(HOUR,), checkpoint_every=24 * HOUR)
"""Checkpoints have a price of their own, once in many seconds; here none comes of itself."""

CONTENT = b"Subject: counted\r\n\r\n" + (b"0123456789abcdef" * 4 + b"\r\n") * 62 + b".\r\n"
DIALOGUE = (
    b"MAIL FROM:<a@x.example>\r\n",
    b"RCPT TO:<b@y.example>\r\n",
    b"DATA\r\n",
    CONTENT,
)


class TracedMta:
    """The process: a queue with an intake, and a worker now and then."""

    def __init__(self, root: Path, queue: MailQueue, intake: SmtpServer, clients: int) -> None:
        self._root, self._queue, self._intake, self._clients = root, queue, intake, clients

    async def phase(self, name: str) -> None:
        """Say that a phase begins, after all that lingers has been written."""
        await asyncio.sleep(0.3)
        try:
            (self._root.parent / f"{PHASE}{name}").open().close()
        except FileNotFoundError:
            pass

    async def hand_in(self, mails: int) -> None:
        """Hand in mails over as many sessions as there are clients."""
        numbers = iter(range(mails))

        async def client() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._intake.port)
            await reader.readline()
            writer.write(b"HELO x.example\r\n")
            await reader.readline()
            for _ in numbers:
                for command in DIALOGUE:
                    writer.write(command)
                    reply = await reader.readline()
                    assert reply[:1] in b"23", reply
            writer.close()

        await asyncio.gather(*(client() for _ in range(self._clients)))

    @asynccontextmanager
    async def working(self, port: int) -> AsyncIterator[None]:
        """Deliver to a port meanwhile."""
        hop = NextHop("127.0.0.1", port, TlsMode.NONE)
        plan = RetryPlan((HOUR,), 24 * HOUR)
        consumer = a_consumer(self._queue, hop, plan, self._clients, backoff=60.0)
        stop = asyncio.Event()
        running = asyncio.create_task(consumer.run(stop, HOUR))
        yield
        stop.set()
        await running

    async def until(self, condition: Callable[[Sizes], bool]) -> None:
        """Wait until the queue's sizes are as wanted."""
        while not condition(await self._queue.size()):
            await asyncio.sleep(0.01)


async def main(root: Path, clients: int, mails: int, front: str = "owner") -> None:
    """Go through the phases."""
    queue = await open_directory(root, create=True, options=OPTIONS)
    door = queue
    if front == "receiver":
        door = await open_directory(root, options=OPTIONS, lock=queue.lock)
    offer = Offer("intake.example", 1 << 20)
    intake = SmtpServer(IntakeContext(door, offer, MachineClock(), SystemRandomness()))
    await intake.listen("127.0.0.1", 0)
    here = TracedMta(root, queue, intake, clients)

    def is_empty(sizes: Sizes) -> bool:
        return sizes.size == 0

    async def in_and_out() -> None:
        async with here.working(sink.port):
            await here.hand_in(mails)
            await here.until(is_empty)

    async with Sink() as sink:
        await here.hand_in(mails)
        async with here.working(free_port()):
            await here.until(lambda sizes: sizes.delayed == mails)
        await queue.flush(Selector.all())
        await in_and_out()
        await queue.maintain()
        await here.phase("accept")
        await here.hand_in(mails)
        await here.phase("deliver")
        async with here.working(sink.port):
            await here.until(is_empty)
        await here.phase("both")
        await in_and_out()
        await here.phase("fill")
        for name in ("once", "away"):
            if name == "once":
                await here.hand_in(mails)
            await queue.flush(Selector.all())
            await here.phase(name)
            async with here.working(free_port()):
                await here.until(lambda sizes: sizes.delayed == mails)
        await here.phase("end")
    await intake.drain(timedelta(seconds=1))
    if door is not queue:
        await door.close()
    await queue.close()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
