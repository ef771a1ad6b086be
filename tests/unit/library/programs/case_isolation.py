"""Tests that would see each other's mail with one name for all; a delay passes at once."""

from datetime import timedelta

import pytest

from postroad import Mail
from postroad.sync import open_queue
from postroad.testing import QueueClock, take

pytest_plugins = ["postroad.testing"]


@pytest.mark.parametrize("_", range(2))
def test_a_delay_passes(_: int, queue_clock: QueueClock, queue_url: str) -> None:
    queue = open_queue(queue_url, create=True)
    queue.enqueue(Mail(None, ["b@example.net"], b"x"), timedelta(hours=1))
    assert queue.run(take) == []
    queue.run(lambda _: queue_clock.advance(timedelta(hours=1)))
    assert len(queue.run(take)) == 1
