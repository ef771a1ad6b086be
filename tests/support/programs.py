"""postroad's long-running commands as processes of their own, as pods run them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from pathlib import Path

READY = "HTTP/1.1 200"


class Program:
    """A running `postroad` command. `log` holds what it wrote to standard error."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self.log = log

    @classmethod
    async def start(
        cls,
        folder: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        module: str = "postroad",
    ) -> Program:
        """Start one; its log goes into a file of `folder`. `before` is a command that runs the
        command behind it, `module` what stands in for postroad."""
        log = folder / f"{arguments[0]}-{len(list(folder.iterdir()))}.log"
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                *(*before, sys.executable, "-m", module, *arguments),
                stdin=DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, "POSTROAD_HEALTH_PORT": "0", **(environment or {})},
            )
        return cls(process, log)

    @property
    def process(self) -> Process:
        """The process that was started: the program, or what runs it."""
        return self._process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def port(self, event: str) -> int:
        """Wait for the log line of `event` and return the port it names."""
        pattern = re.compile(rf'"event": "{event}".*"address": "[^"]*:(\d+)"')
        while True:
            found = pattern.search(self.log.read_text())
            if found:
                return int(found[1])
            if self._process.returncode is not None:
                raise AssertionError(f"it ended: {self.log.read_text()}")
            await asyncio.sleep(0.05)

    async def ask(self, path: str) -> str:
        """Return the status line and the body that the health port answers with."""
        port = await self.port("health")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        response = (await reader.read()).decode()
        writer.close()
        return response

    async def until_ready(self) -> None:
        """Wait until `/readyz` answers 200."""
        while not (await self.ask("/readyz")).startswith(READY):
            await asyncio.sleep(0.1)

    async def stop(self) -> int:
        """Ask it to end; return its exit code."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        return await self._process.wait()

    async def stop_by_itself(self) -> int:
        """Wait until it ends; return its exit code."""
        return await self._process.wait()

    async def kill(self) -> None:
        """End it without warning."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
