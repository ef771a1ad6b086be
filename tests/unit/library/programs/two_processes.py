"""Two producers and a consumer, each a process, share a directory."""

import sys
from subprocess import Popen

from postroad import Mail
from postroad.sync import open_queue

with open_queue(sys.argv[1], create=True) as queue:
    if len(sys.argv) > 2:
        queue.enqueue_all([Mail(None, ["b@example.net"], b"x")] * 200)
    else:
        producers, taken = [Popen([sys.executable, *sys.argv, "to"]) for _ in "ab"], set[str]()
        while any(each.poll() is None for each in producers) or queue.size().size:
            queue.consume(lambda mail: taken.add(mail.key), wait=False)
        print(len(taken))
