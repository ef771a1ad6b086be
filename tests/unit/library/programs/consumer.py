"""A consumer with retries, which gives up after three attempts; it ends by SIGTERM."""

import asyncio
import sys
from datetime import timedelta

from postroad import HandedMail, Retry, open_queue


async def deliver(mail: HandedMail) -> None:
    if mail.content in {b"boom", next(flaky, b"")}:
        raise RuntimeError("the ticket system is down")
    print("done", mail.content.decode(), flush=True)


async def main(url: str) -> None:
    async with open_queue(url, create=True) as queue:
        retry = Retry(lanes=(timedelta(milliseconds=10),), max_attempts=3)
        await queue.consume(deliver, retry=retry)
        print([each.reason async for each in queue.dead_letters()])


flaky = iter([b"flaky"])
asyncio.run(main(sys.argv[1]))
