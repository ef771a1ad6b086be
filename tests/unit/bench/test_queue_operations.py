"""What the bench of operations counts are methods that the adapters have."""

import asyncio
from uuid import uuid4

from bench.queue_operations import counting
from postroad.adapters.rabbitmq.publisher import PublishedMessage, Unconfirmed


async def test_a_confirm_is_counted_for_each_message() -> None:
    with counting() as counts:
        unconfirmed = Unconfirmed()
        for tag in (1, 2):
            unconfirmed.add(tag, PublishedMessage("queue", uuid4(), b""))
        unconfirmed.resolve(2, None, multiple=True)
        await asyncio.sleep(0)
    unconfirmed.add(3, PublishedMessage("queue", uuid4(), b""))
    unconfirmed.resolve(3, None, multiple=False)
    assert counts == {("RabbitMQ", "confirm"): 2}
