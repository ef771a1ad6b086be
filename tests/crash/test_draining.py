"""A pod that is to end, as when its node is drained, finishes its mails and takes no more."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from postroad import Mail, open_queue
from support.programs import Program
from support.sink import Sink

MAILS, IN_FLIGHT = 5, 2


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
