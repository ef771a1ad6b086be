"""An enqueue that is cancelled is repeated with its key; what a consumer had comes again."""

import asyncio
import sys
from contextlib import suppress
from datetime import timedelta

from postroad import HandedMail, Mail, open_queue
from postroad.testing import take


async def slow(_: HandedMail) -> None:
    await asyncio.sleep(60)


async def main(url: str) -> None:
    async with open_queue(url, create=True) as queue:
        for number in range(50):
            mail, key = Mail(None, ["b@example.net"], b"x" * 1000), str(number)
            with suppress(TimeoutError):
                await asyncio.wait_for(queue.enqueue(mail, key=key), number / 20_000)
            await queue.enqueue(mail, key=key)
        with suppress(TimeoutError):
            await asyncio.wait_for(queue.consume(slow, drain=timedelta(0)), 0.2)
        print(len(await take(queue)))


asyncio.run(main(sys.argv[1]))
