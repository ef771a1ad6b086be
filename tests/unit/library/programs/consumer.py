"""A consumer with retries, which gives up after three attempts; it ends by SIGTERM."""

import sys
from datetime import timedelta

from postroad import HandedMail, Retry
from postroad.sync import open_queue

retry, flaky = Retry(lanes=(timedelta(milliseconds=10),), max_attempts=3), iter([b"flaky"])


def deliver(mail: HandedMail) -> None:
    if mail.content in {b"boom", next(flaky, b"")}:
        raise RuntimeError("the ticket system is down")
    print("done", mail.content.decode(), flush=True)


with open_queue(sys.argv[1], create=True) as queue:
    queue.consume(deliver, retry=retry)
    print([each.reason for each in queue.dead_letters()])
