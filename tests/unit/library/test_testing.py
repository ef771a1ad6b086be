"""Fixtures for tests of programs: queues of their own, a clock that moves, what was sent."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import pytest

from postroad import HandedMail, Mail, open_queue, sync
from postroad.testing import QueueClock, join, queue_clock, queue_url, take

__all__ = ["queue_clock", "queue_url"]  # as `pytest_plugins` brings them

HOUR = timedelta(hours=1)


def mail(text: bytes) -> Mail:
    return Mail("a@example.org", ["b@example.net"], text)


@pytest.mark.parametrize("engine", ["memory", "embedded"])
async def test_time_passes_without_waiting(
    engine: str, queue_url: str, queue_clock: QueueClock, tmp_path: Path
) -> None:
    url = queue_url if engine == "memory" else f"embedded://{tmp_path}/queue"
    async with open_queue(url, create=True) as queue:
        await queue.enqueue(mail(b"later"), delay=HOUR)
        await queue.enqueue(mail(b"now"))
        assert [each.content for each in await take(queue)] == [b"now"]
        assert await take(queue) == []

        await queue_clock.advance(HOUR)

        assert [each.content for each in await take(queue)] == [b"later"]


async def test_a_consumer_that_waits_is_woken_by_the_clock(
    queue_url: str, queue_clock: QueueClock
) -> None:
    seen: list[HandedMail] = []
    begun = time.monotonic()
    async with open_queue(queue_url, create=True) as queue:
        await queue.enqueue(mail(b"later"), delay=HOUR)
        consuming = asyncio.create_task(queue.consume(seen.append))
        await join(queue)
        assert seen == []
        await queue_clock.advance(HOUR)
        await join(queue)
        consuming.cancel()

    assert [each.content for each in seen] == [b"later"]
    assert time.monotonic() - begun < HOUR.total_seconds() / 100


async def test_waiting_for_what_no_consumer_takes_ends(queue_url: str) -> None:
    async with open_queue(queue_url, create=True) as queue:
        await queue.enqueue(mail(b"x"))
        with pytest.raises(TimeoutError):
            await join(queue, timedelta(milliseconds=20))


@pytest.mark.parametrize("_", range(2))
def test_each_test_has_a_queue_of_its_own(_: int, queue_url: str) -> None:
    with sync.open_queue(queue_url, create=True) as queue:
        assert list(queue.browse()) == []
        queue.enqueue(mail(b"x"))
        assert [each.content for each in queue.run(take)] == [b"x"]
        queue.run(join)
