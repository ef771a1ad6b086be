"""A pod that is to end, as when its node is drained, finishes its mails and takes no more; one that
is killed repeats no more of them than it has connections. Both with mails behind one another."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

from postroad import Mail, open_queue
from support.programs import Program
from support.sink import Sink

MAILS, IN_FLIGHT = 5, 2
MANY, CONNECTIONS, KILLS = 200, 5, 3


def mails_of(sink: Sink) -> Counter[str]:
    return Counter(mail.recipients[0] for mail in sink.mails)


async def waiting_in(url: str) -> set[str]:
    async with open_queue(url) as queue:
        return {view.mail.recipients[0] async for view in queue.browse()}


async def test_a_worker_that_is_killed_repeats_at_most_a_mail_for_each_connection(
    tmp_path: Path,
) -> None:
    url, draw, unrecorded = f"embedded://{tmp_path / 'store'}", random.Random(17), 0
    async with open_queue(url, create=True) as queue:
        for number in range(MANY):
            to = (f"{number}@dest.example",)
            await queue.enqueue(Mail(sender="a@x.example", recipients=to, content=b"S: x\r\n\r\nx"))
    async with Sink() as sink:
        arguments = (
            *("worker", "--queue", url, "--tls", "none", "--concurrency", str(CONNECTIONS)),
            *("--relay", f"127.0.0.1:{sink.port}"),
        )
        for _ in range(KILLS):
            worker = await Program.start(tmp_path, *arguments)
            before, enough = mails_of(sink), draw.randrange(1, MANY // (KILLS + 2))
            while sink.received - before.total() < enough:
                await asyncio.sleep(0.002)
            await worker.kill()
            while sink.sessions:  # a mail that was sent whole may not be read yet
                await asyncio.sleep(0.002)
            in_flight = await waiting_in(url) & (mails_of(sink) - before).keys()
            unrecorded += len(in_flight)
            assert len(in_flight) <= CONNECTIONS
        worker = await Program.start(tmp_path, *arguments)
        await worker.until_ready()  # else this process may be the owner, and end amid deliveries
        async with open_queue(url) as queue:
            while (await queue.size()).size:
                await asyncio.sleep(0.05)
        assert await worker.stop() == 0

    copies = mails_of(sink)
    assert len(copies) == MANY
    assert copies.total() - MANY <= unrecorded
    print(f"{KILLS} kills, {copies.total() - MANY} repeated, {unrecorded} without a record")


async def test_a_worker_finishes_what_it_transmits_and_begins_no_more(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path / 'store'}"
    async with open_queue(url, create=True) as queue:
        for number in range(MAILS):
            to = (f"{number}@dest.example",)
            await queue.enqueue(Mail(sender="a@x.example", recipients=to, content=b"S: x\r\n\r\nx"))
    async with Sink() as sink:
        sink.gate.clear()
        worker = await Program.start(
            tmp_path,
            *("worker", "--queue", url, "--tls", "none", "--concurrency", str(IN_FLIGHT)),
            *("--relay", f"127.0.0.1:{sink.port}"),
        )
        await worker.until_ready()
        while sink.commands.count("DATA") < IN_FLIGHT:
            await asyncio.sleep(0.05)

        os.kill(worker.pid, signal.SIGTERM)
        while "draining" not in await worker.ask("/readyz"):
            await asyncio.sleep(0.05)
        assert worker.process.returncode is None
        assert (await worker.ask("/healthz")).startswith("HTTP/1.1 200")
        sink.gate.set()

        assert await worker.stop_by_itself() == 0
        assert len(sink.mails) == IN_FLIGHT
    async with open_queue(url) as queue:
        assert (await queue.size()).size == MAILS - IN_FLIGHT
