"""A test file of a program: a queue of its own for each test, hours that pass at once."""

import asyncio
from datetime import timedelta

from postroad import HandedMail, Mail, Outcome, open_queue
from postroad.testing import QueueClock, join, take

pytest_plugins = ["postroad.testing"]
MAIL = Mail("a@example.org", ["b@example.net"], b"Subject: hi\r\n\r\nhello\r\n")


async def test_a_welcome_is_sent(queue_url: str) -> None:
    async with open_queue(queue_url, create=True) as queue:
        await queue.enqueue(MAIL)
        (sent,) = await take(queue)
        assert sent.message()["Subject"] == "hi"


async def test_a_ticket_is_made_after_the_second_attempt(
    queue_url: str, queue_clock: QueueClock
) -> None:
    outcomes = iter([Outcome.deferred("451 away"), Outcome.delivered()])

    def handler(mail: HandedMail) -> Outcome:
        return next(outcomes)

    async with open_queue(queue_url, create=True) as queue:
        consuming = asyncio.create_task(queue.consume(handler))
        await queue.enqueue(MAIL)
        await join(queue)
        await queue_clock.advance(timedelta(minutes=2))
        await join(queue)
        consuming.cancel()
        assert (list(outcomes), (await queue.size()).size) == ([], 0)
