"""One short life of a store on real files, for `strace` to kill or to count: `driver.py DIR LOG`.

What the world outside saw is appended to LOG, a file of its own, before and after each step.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import structlog

from postroad import Mail, Outcome
from postroad.bootstrap.directory import open_directory
from postroad.spool.layout import Options

OPTIONS = Options(segment_bytes=4096 + 16 + 4000, marks=16)
MAILS = 6


async def live(root: Path, log: Path) -> None:
    with log.open("ab", buffering=0) as seen:

        def note(event: str, mail: str) -> None:
            seen.write(f"{event} {mail}\n".encode())

        queue = await open_directory(root, create=True, options=OPTIONS)
        note("opened", "-")
        items = queue.dequeue(prefetch=2)
        for number in range(MAILS):
            name = f"{log.stat().st_size}x{number}"
            content = b"Subject: x\r\n\r\n" + name.encode() * 100
            note("offered", name)
            mail = Mail("a@x.example", (f"{name}@y.example", f"{name}@z.example"), content, name)
            await queue.enqueue(mail)
            note("accepted", name)
            item = await anext(items)
            note("transmitted", f"{item.mail.name}")
            await item.record(item.mail.recipients[:1], Outcome.delivered())
            note("recorded", f"{item.mail.recipients[0]}")
            if number % 2:
                await item.done()
                note("done", f"{item.mail.name}")
            else:
                await item.retry(OPTIONS.steps[0])
            await queue.maintain()
        await queue.close()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(live(Path(sys.argv[1]), Path(sys.argv[2])))
