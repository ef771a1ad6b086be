"""Tests that would see each other's mail with one name for all; a delay passes at once."""

from datetime import timedelta

import pytest

from postroad import Mail
from postroad.sync import SyncQueue, open_queue
from postroad.testing import QueueClock, take

pytest_plugins = ["postroad.testing"]


@pytest.fixture
def queue(queue_clock: QueueClock, queue_url: str) -> SyncQueue:
    return open_queue(queue_url, create=True)


@pytest.mark.parametrize("_", range(2))
def test_a_delay_passes(_: int, queue: SyncQueue, queue_clock: QueueClock) -> None:
    queue.enqueue(Mail(None, ["b@example.net"], b"x"), timedelta(hours=1))
    assert queue.run(take) == []
    queue.run(lambda _: queue_clock.advance(timedelta(hours=1)))
    assert len(queue.run(take)) == 1
