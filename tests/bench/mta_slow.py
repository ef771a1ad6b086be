"""A hundred fast clients, alone and beside one that sends an octet a second (SP-13).

What counts is how long the fast ones wait between the end of a mail and its 250; in alternation,
with the slow one and without.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from bench.results import Result, compared
from peers.postfix import SmtpSink
from support.programs import Program

CLIENTS, MAILS, ROUNDS = 100, 400, 3
CONTENT = b"Subject: fast\r\n\r\n" + (b"0123456789abcdef" * 4 + b"\r\n") * 31
SLOW = b"Subject: slow\r\n\r\n" + (b"x" * 70 + b"\r\n") * 150


async def measure(base: Path) -> list[Result]:
    """Measure an MTA that relays to a sink."""
    sink = await SmtpSink.start(base)
    program = await Program.start(
        base,
        *("mta", "--queue", f"embedded://{base}/slow", "--listen", "127.0.0.1:0"),
        *("--relay", f"127.0.0.1:{sink.port}", "--tls", "none"),
    )
    try:
        port = await program.port("listening")
        await _answers(port)
        alone, beside = [], []
        for _ in range(ROUNDS):
            alone.append(await _answers(port))
            crawling = asyncio.create_task(_crawl(port))
            beside.append(await _answers(port))
            assert not crawling.done()
            crawling.cancel()
    finally:
        await program.kill()
        await sink.stop()
    case = f"{CLIENTS} clients, one more at 1 octet/s"
    return [
        compared(
            f"{name} of the wait for 250", case, "ms", [each[number] for each in beside],
            "without the slow one", [each[number] for each in alone], less_is_better=True,
        )
        for number, name in enumerate(("median", "p99"))
    ]  # fmt: skip


async def _answers(port: int) -> tuple[float, float]:
    """Hand in mails over all clients; return the median and the 99th percentile in ms."""
    waits: list[float] = []
    numbers = iter(range(MAILS))

    async def client() -> None:
        reader, writer = await _greeted(port)
        for _ in numbers:
            await _begin_mail(reader, writer)
            writer.write(CONTENT + b".\r\n")
            ended = time.perf_counter()
            assert (await reader.readline())[:3] == b"250"
            waits.append(1000 * (time.perf_counter() - ended))
        writer.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return statistics.median(waits), statistics.quantiles(waits, n=100)[98]


async def _crawl(port: int) -> None:
    reader, writer = await _greeted(port)
    await _begin_mail(reader, writer)
    for octet in SLOW:
        writer.write(bytes([octet]))
        await asyncio.sleep(1)


async def _greeted(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readline()
    writer.write(b"HELO x.example\r\n")
    await reader.readline()
    return reader, writer


async def _begin_mail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for command in (b"MAIL FROM:<a@x.example>", b"RCPT TO:<b@y.example>", b"DATA"):
        writer.write(command + b"\r\n")
        assert (await reader.readline())[:1] in b"23"
