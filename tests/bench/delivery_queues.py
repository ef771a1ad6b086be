"""Queues that are full before their programs start: ours over a directory, and Postfix'."""

from __future__ import annotations

import asyncio
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from peers.postfix import UNTHROTTLED, Postfix, smtp_source
from peers.server import Road, end
from postroad import Mail, open_queue
from support.programs import Program

ENQUEUED_AT_ONCE = 64
SESSIONS = 20
"""Of smtp-source, while Postfix is filled."""


class Candidate(ABC):
    """A program with a queue of its own, and one next hop."""

    name: str

    def __init__(self, base: Path, next_port: int, connections: int) -> None:
        self.base, self.next_port, self.connections = base, next_port, connections

    @abstractmethod
    async def fill(self, mails: int, size: int) -> None:
        """Replace its queue by one with so many mails of `size` octets."""

    @abstractmethod
    async def start(self, before: Sequence[str]) -> None:
        """Start it behind the command `before`; it begins to deliver."""

    @abstractmethod
    async def stop(self) -> None:
        """End it."""


class OurQueue(Candidate):
    """`postroad worker` over a directory. `is_routed`: its next hop is the smart host of a route,
    which may get chunks, and not a relay."""

    name = "postroad"

    def __init__(
        self, base: Path, next_port: int, connections: int, *, is_routed: bool = False
    ) -> None:
        super().__init__(base, next_port, connections)
        self._is_routed = is_routed
        self._program: Program | None = None

    async def fill(self, mails: int, size: int) -> None:
        shutil.rmtree(self.base, ignore_errors=True)
        self.base.mkdir()
        header = b"Subject: queued\r\n\r\n"
        lines = (size - len(header)) // 80 + 1
        content = (header + (b"x" * 78 + b"\r\n") * lines)[: size - 2] + b"\r\n"
        mail = Mail("sender@source.example", ("recipient@sink.example",), content)
        async with open_queue(f"embedded://{self.base}/store", create=True) as queue:
            for _ in range(0, mails, ENQUEUED_AT_ONCE):
                left = min(ENQUEUED_AT_ONCE, mails)
                mails -= left
                await asyncio.gather(*(queue.enqueue(mail) for _ in range(left)))

    async def start(self, before: Sequence[str]) -> None:
        self._program = await Program.start(
            self.base,
            *("worker", "--queue", f"embedded://{self.base}/store"),
            *("--concurrency", str(self.connections)),
            *self._way(),
            before=before,
        )

    def _way(self) -> tuple[str, ...]:
        if not self._is_routed:
            return "--relay", f"127.0.0.1:{self.next_port}", "--tls", "none"
        hop = f"{{host: 127.0.0.1, port: {self.next_port}, tls: {{mode: None}}}}"
        file = self.base / "delivery.yaml"
        file.write_text(f"routing: {{rules: [{{name: all, hops: [{hop}]}}]}}\n")
        return "--delivery", str(file)

    async def stop(self) -> None:
        if self._program is not None:
            await end(self._program.process)


class PostfixQueue(Candidate):
    """Postfix. It is filled while no queue manager runs, so that all mail is incoming when it
    starts, as if it had come at once."""

    def __init__(self, base: Path, next_port: int, connections: int) -> None:
        super().__init__(base, next_port, connections)
        self._postfix = Filled(base, Road(next_port, concurrency=connections), UNTHROTTLED)
        self._postfix.prepare()  # the title has its version
        self.name = self._postfix.title

    async def fill(self, mails: int, size: int) -> None:
        self._postfix.has_manager = False
        await self._postfix.start()
        try:
            await smtp_source(self.base, self._postfix.port, mails, SESSIONS, size)
        finally:
            await self._postfix.stop()

    async def start(self, before: Sequence[str]) -> None:
        self._postfix.has_manager = True
        await self._postfix.start(*before)

    async def stop(self) -> None:
        await self._postfix.stop()


class Filled(Postfix):
    """A Postfix that may lack its queue manager."""

    has_manager = True

    def configure(self) -> None:
        super().configure()
        if not self.has_manager:
            services = self.base / "etc/master.cf"
            services.write_text(re.sub(r"^qmgr .*\n", "", services.read_text(), flags=re.M))
