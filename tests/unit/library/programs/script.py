"""A program without asyncio: a mail at a time, from several threads, by smtplib's interface."""

import sys
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage

from postroad import Mail
from postroad.sync import SMTP, open_queue

with open_queue(sys.argv[1], create=True) as queue:
    mails = [Mail("a@example.org", [f"r{each}@example.net"], b"hello") for each in range(20)]
    with ThreadPoolExecutor(4) as threads:
        print(len(set(threads.map(queue.enqueue, mails))))
    message = EmailMessage()
    message["From"], message["To"] = "a@example.org", "b@example.net"
    SMTP(queue).send_message(message)
    print(len(list(queue.browse())))
