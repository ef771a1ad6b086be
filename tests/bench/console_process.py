"""A console that is measured, and its clients."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import httpx

from support.cpu_time import cpu_seconds
from support.programs import Program

MAX_CONNECTIONS = 200
"""Of one client."""


class ConsoleProcess:
    """A console over a directory, as a process of its own."""

    def __init__(self, program: Program, base: str) -> None:
        self.program, self.base = program, base

    @classmethod
    async def start(cls, folder: Path, store: Path) -> ConsoleProcess:
        """Start one, and wait for its first link."""
        program = await Program.start(
            folder,
            *("console", "--queue", f"embedded://{store}", "--listen", "127.0.0.1:0"),
        )
        made = cls(program, "")
        link = await made.link(1)
        made.base = link.partition("/?")[0]
        return made

    async def link(self, number: int) -> str:
        """Wait for the link of this number, and return it."""
        while True:
            found = re.findall(r"open (http://\S+)", self.program.log.read_text())
            if len(found) >= number:
                return str(found[number - 1])
            assert self.program.process.returncode is None, self.program.log.read_text()
            await asyncio.sleep(0.1)

    async def session(self, number: int) -> httpx.AsyncClient:
        """Return a client with the session of the link of this number, from 1."""
        if number > 1:
            self.program.process.send_signal(signal.SIGHUP)
        link = await self.link(number)
        unbounded = httpx.Limits(max_connections=MAX_CONNECTIONS)
        client = httpx.AsyncClient(base_url=self.base, timeout=600, limits=unbounded)
        answer = await client.get(link)
        client.headers["Authorization"] = f"Bearer {answer.cookies['postroad-console']}"
        client.cookies.clear()
        return client

    def cpu(self) -> float:
        """Return seconds of CPU that it has used."""
        return cpu_seconds([self.program.pid])

    def megabytes(self, which: str) -> float:
        """Return what the kernel says of its memory, such as `VmRSS`."""
        status = Path(f"/proc/{self.program.pid}/status").read_text()
        return float(status.partition(f"{which}:")[2].split()[0]) * 1024 / 1e6
