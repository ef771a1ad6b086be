"""`postroad mta` that delivers by routes, killed at random amid deliveries to several sites."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from postroad import Mail, Selector, open_queue
from support.programs import Program
from support.sink import Sink

SITES = 5
MAILS = 120
LIVES = 6

Arrivals = Counter[tuple[str, str]]
"""Sender and recipient: each mail has a sender of its own."""


def arrivals(sinks: list[Sink]) -> Arrivals:
    return Counter(
        (mail.sender, each) for sink in sinks for mail in sink.mails for each in mail.recipients
    )


async def an_mta(folder: Path, root: Path, routes: Path) -> Program:
    return await Program.start(
        folder,
        *("mta", "--queue", f"embedded://{root}", "--listen", "127.0.0.1:0"),
        *("--delivery", str(routes)),
        environment={"POSTROAD_RETRY_LANES": "1s"},
    )


def write_routes(file: Path, sinks: list[Sink]) -> None:
    rules = "\n".join(
        f"  - {{name: site{n}, domains: [site{n}.example],"
        f" primary: [{{host: 127.0.0.1, port: {sink.port}, tls: none}}]}}"
        for n, sink in enumerate(sinks)
    )
    file.write_text(f"routing:\n  rules:\n{rules}\n".replace("\n  - ", "\n    - "))


async def enqueue(root: Path, draw: random.Random) -> Arrivals:
    """Queue mails of 1 to 12 recipients; return what has to arrive."""
    expected = Arrivals()
    async with open_queue(f"embedded://{root}", create=True) as queue:
        for number in range(MAILS):
            sender = f"m{number}@origin.example"
            recipients = tuple(
                f"r{n}@site{draw.randrange(SITES)}.example" for n in range(draw.choice([1, 3, 12]))
            )
            await queue.enqueue(Mail(sender, recipients, b"Subject: x\r\n\r\nx\r\n"))
            expected.update((sender, each) for each in recipients)
    return expected


async def left_in(root: Path) -> set[tuple[str, str]]:
    """Return what is still to be delivered, as a consumer would get it."""
    left = set[tuple[str, str]]()
    async with open_queue(f"embedded://{root}") as queue:
        waiting = (await queue.size()).size
        if not waiting:
            return left
        await queue.flush(Selector.all())
        seen = 0
        async for item in queue.dequeue(prefetch=waiting):
            left.update((str(item.mail.sender), each) for each in item.mail.recipients)
            seen += 1
            if seen == waiting:
                break
    return left


@pytest.mark.parametrize("seed", [1])
async def test_killed_at_random_it_repeats_only_what_was_transmitted_and_not_recorded(
    tmp_path: Path, seed: int
) -> None:
    root, routes, draw = tmp_path / "store", tmp_path / "delivery.yaml", random.Random(seed)
    expected = await enqueue(root, draw)
    allowed = Arrivals(expected)
    """How often each may arrive: once, and once more for each kill between a transmission and its
    record."""
    unrecorded, deliveries = 0, expected.total() // (LIVES + 2)
    async with AsyncExitStack() as stack:
        sinks = [await stack.enter_async_context(Sink()) for _ in range(SITES)]
        write_routes(routes, sinks)
        for _ in range(LIVES):
            program, before = await an_mta(tmp_path, root, routes), arrivals(sinks)
            enough = before.total() + draw.randrange(deliveries)
            while arrivals(sinks).total() <= enough:
                await asyncio.sleep(0.002)
            await program.kill()
            arrived, left = arrivals(sinks), await left_in(root)
            assert left | arrived.keys() == expected.keys()  # none is lost
            for each in left & (arrived - before).keys():
                allowed[each] += 1
                unrecorded += 1
        program = await an_mta(tmp_path, root, routes)
        async with open_queue(f"embedded://{root}") as queue:
            while (await queue.size()).size:
                await asyncio.sleep(0.05)
        await program.stop()
        arrived = arrivals(sinks)

    assert arrived.keys() == expected.keys()
    assert not arrived - allowed
    repeated = arrived.total() - expected.total()
    assert repeated <= unrecorded
    print(f"{LIVES} kills, {repeated} repeated, {unrecorded} transmitted and not recorded")
