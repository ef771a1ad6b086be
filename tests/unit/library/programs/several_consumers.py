"""Handlers that run side by side: each mail comes to one of them, and all are done in the end."""

import sys

from postroad import Mail
from postroad.sync import open_queue

with open_queue(sys.argv[1], create=True) as queue:
    seen: list[str] = []
    queue.enqueue_all([Mail(None, ["b@example.net"], b"x")] * 100)
    queue.consume(lambda mail: seen.append(mail.key), concurrency=5, wait=False)
    print(len(seen), len(set(seen)))
