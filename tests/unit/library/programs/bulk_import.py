"""A bulk import without asyncio: what was queued before is not queued again."""

import sys

from postroad import Mail
from postroad.sync import open_queue

with open_queue(sys.argv[1], create=True) as queue:
    for _ in range(2):
        mails = (Mail(None, [f"r{each}@example.net"], b"x" * 2000) for each in range(500))
        print(len(set(queue.enqueue_all(mails, key=lambda each: each.recipients[0]))))
    print(queue.size().size)
