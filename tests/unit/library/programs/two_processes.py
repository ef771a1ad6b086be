"""Two producers and a consumer, each a process, share a directory."""

import asyncio
import sys
from subprocess import Popen

from postroad import Mail, open_queue


async def main(url: str, role: str) -> None:
    async with open_queue(url, create=True) as queue:
        if role == "producer":
            await queue.enqueue_all([Mail(None, ["b@example.net"], b"x")] * 200)
        else:
            left = iter(range(400))
            async for item in queue.dequeue(20):
                await item.done()
                if next(left) == 399:
                    break


if len(sys.argv) > 2:
    asyncio.run(main(*sys.argv[1:]))
else:
    roles = ("consumer", "producer", "producer")
    print([each.wait() for each in [Popen([sys.executable, *sys.argv, each]) for each in roles]])
