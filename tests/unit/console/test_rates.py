"""Rates of queues, by readings of their sizes and of the entries of workers."""

from __future__ import annotations

import gc
from collections import deque
from datetime import timedelta

import pytest

from postroad import Mail, open_queue
from postroad.console.queues import ConsoleQueue
from postroad.console.rates import MIN_BETWEEN, OVER, ObservedRates, QueueReading, rates_of
from postroad.domain.delivery.sites import published_views
from postroad.domain.queues.names import QueueName
from postroad.ports.delivery import Topic
from support.consoles import a_console
from support.memory.clock import ManualClock

BASE = "/api/v1/queues/memory/rated"


def reading(seconds: float, size: int | None, **left: int) -> QueueReading:
    return QueueReading(timedelta(seconds=seconds), size, left)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([reading(0, 5)], None),
        ([reading(0, 5), reading(10, 25)], (10, None, None)),
        ([reading(0, 100, w=7), reading(10, 60, w=107)], (10, 6.0, 10.0)),
        ([reading(0, 100, w=7), reading(10, 0, w=7)], (10, 0, 0)),
        ([reading(0, 9, w=50), reading(10, 9, v=20)], (10, 2.0, 2.0)),
        ([reading(0, 9, w=50), reading(10, 9, w=3)], (10, 0, 0)),
        ([reading(0, 9, w=50), reading(10, 9)], (10, None, None)),
        ([reading(0, 9), reading(10, 9, w=50)], (10, 5.0, 5.0)),
        ([reading(0, None, w=0), reading(10, 9, w=30)], (10, None, 3.0)),
        ([reading(0, 0, w=0), reading(100, 0, w=10), reading(150, 0, w=60)], (50, 1.0, 1.0)),
        ([reading(0, 0, w=0), reading(500, 0, w=1000)], (500, 2.0, 2.0)),
    ],
)
def test_rates_are_what_left_and_what_there_is_more(
    readings: list[QueueReading], expected: tuple[float, float, float] | None
) -> None:
    found = rates_of(deque(readings))

    seen = None if found is None else (found.over_seconds, found.mails_in, found.mails_out)
    assert seen == expected


async def test_a_queue_has_rates_when_it_is_looked_at_again() -> None:
    clock = ManualClock()
    async with a_console("memory://rated", clock=clock) as console:
        shared = console.queue.shared_state
        assert shared
        assert (await console.client.get(BASE)).json()["rates"] is None
        await shared.publish(Topic.WORKERS, "w", published_views([], left=30), 10 * OVER)
        await shared.publish(Topic.WORKERS, "old", '{"sites": [], "more": 0}', 10 * OVER)
        await console.queue.enqueue(Mail("a@example.org", ("b@example.net",), b"x"))
        clock.jump(MIN_BETWEEN / 2)
        soon = (await console.client.get(BASE)).json()["rates"]
        clock.jump(MIN_BETWEEN * 1.5)
        (listed,) = (await console.client.get("/api/v1/queues")).json()["items"]

    assert soon is None, "two readings are some seconds apart"
    assert listed["rates"] == {
        "overSeconds": 10.0,
        "mailsIn": 3.1,
        "mailsOut": 3.0,
        "sizes": [0, 1],
    }
    assert listed["conditions"] is None, "a directory is no MailQueue"


async def test_a_queue_shows_no_sizes_of_one_that_was_closed_before() -> None:
    rates = ObservedRates(clock := ManualClock())
    found = []
    for _ in range(20):  # of queues that have their places in memory one after the other
        clock.jump(MIN_BETWEEN)
        async with open_queue("memory://closed", create=True) as queue:
            on = ConsoleQueue(QueueName("memory", "closed"), queue)
            found.append(await rates.observe(on, await queue.size()))
        del queue, on
        gc.collect()

    assert found == [None] * 20
