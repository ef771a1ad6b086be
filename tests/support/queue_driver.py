"""A program that carries out commands from standard input on a queue, with any release of postroad:
it may import nothing but the standard library and postroad's public names. `support.releases`
starts it."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import postroad
from postroad import AttemptOutcomes, Mail, Outcome, Selector, open_queue

RETRIES = 2
"""How often a mail whose name begins with `retry` is deferred."""


class QueueDriver:
    """One queue, and perhaps a consumer, which treats a mail by the beginning of its name."""

    def __init__(self) -> None:
        self._queue: Any = None
        self._consumer: asyncio.Task[None] | None = None
        self._rejects = True
        self._stopping = asyncio.Event()

    async def home(self) -> str:
        return str(Path(postroad.__file__).parent)

    async def open(self, url: str) -> None:
        self._queue = await open_queue(url, create=True)

    async def enqueue(self, sender: str, names: list[str], delay: float = 0) -> None:
        for name in names:
            content = b"Subject: x\r\n\r\nx\r\n"
            mail = Mail(sender, (f"{name}@example.net",), content, name=name)
            await self._queue.enqueue(mail, delay=timedelta(seconds=delay))

    async def change(self, operation: str, sender: str) -> int:
        changed: int = await getattr(self._queue, operation)(Selector(sender=sender))
        return changed

    async def browse(self) -> list[str]:
        return sorted([view.mail.name async for view in self._queue.browse()])

    async def dead_letters(self) -> list[str]:
        return sorted([view.mail.name async for view in self._queue.dead_letters()])

    async def size(self) -> int:
        return int((await self._queue.size()).size)

    async def maintain(self) -> None:
        await self._queue.maintain()

    async def consume(self, *, rejects: bool) -> None:
        self._rejects = rejects
        if self._consumer is None:
            self._consumer = asyncio.create_task(self._consume())

    async def close(self) -> None:
        self._stopping.set()
        if self._consumer is not None:
            await self._consumer
        await self._queue.close()

    async def _consume(self) -> None:
        items, stopping = (
            self._queue.dequeue(prefetch=4),
            asyncio.create_task(self._stopping.wait()),
        )
        while True:
            coming = asyncio.ensure_future(anext(items))
            await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                await asyncio.wait({coming})
                return
            item = coming.result()
            name = item.mail.name
            if name.startswith("retry") and item.attempt < RETRIES:
                say(retried=name)
                await item.retry(timedelta(seconds=1), error="451 try later", **heard("451 later"))
            elif name.startswith("reject") and self._rejects:
                await item.reject("550 no such user", **heard("550 no such user"))
            else:
                say(transmitted=name)
                await item.done(**heard("250 ok"))


def heard(text: str) -> dict[str, Any]:
    """What is kept of an attempt."""
    kinds: dict[str, Any] = {"2": Outcome.delivered, "4": Outcome.deferred, "5": Outcome.failed}
    return {"outcomes": AttemptOutcomes.of({"b@example.net": kinds[text[0]](text)}, 0.5)}


def say(**values: object) -> None:
    """Write one line for the test that started this program."""
    print(json.dumps(values), flush=True)


async def main() -> None:
    driver = QueueDriver()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        values = json.loads(line)
        command = values.pop("command")
        try:
            say(result=await getattr(driver, command)(**values))
        except Exception:
            say(error=traceback.format_exc())
        if command == "close":
            return


if __name__ == "__main__":
    asyncio.run(main())
