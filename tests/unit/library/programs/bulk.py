"""A bulk import, as fast as it goes; then a report."""

import asyncio
import sys

from postroad import Mail, open_queue


async def main(url: str, count: int) -> None:
    async with open_queue(url, create=True) as queue:
        mails = (Mail(None, [f"r{each}@example.net"], b"x" * 2000) for each in range(count))
        print(len(await queue.enqueue_all(mails)), (await queue.size()).size)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
