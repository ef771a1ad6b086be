"""Handlers that run side by side, some of them slow: each mail comes to one of them."""

import asyncio
import sys

from postroad import HandedMail, Mail, open_queue
from postroad.testing import join


async def handler(mail: HandedMail) -> None:
    await asyncio.sleep(len(seen) % 5 * 0.005)
    seen.append(mail.key)


async def main(url: str) -> None:
    async with open_queue(url, create=True) as queue:
        await queue.enqueue_all([Mail(None, ["b@example.net"], b"x")] * 100)
        consuming = asyncio.create_task(queue.consume(handler, concurrency=5))
        await join(queue)
        consuming.cancel()
    print(len(seen), len(set(seen)))


seen: list[str] = []
asyncio.run(main(sys.argv[1]))
