"""`python -m demo.small [--mail DIR]`: the embedded queue, in one directory and without a server.

Starts `postroad mta`, sends mail by SMTP while the next hop is away, shows it waiting, holds one,
kills the process, starts another over the same directory, lets a next hop come, and prints what
became of each mail.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from demo.report import print_mails, step
from demo.sample_mails import SAMPLES, DemoMail, Summary, note_received, read_mails, send
from support.programs import Program
from support.sink_process import SinkProcess

FOLDER = Path(__file__).resolve().parents[2] / "build" / "demo-small"
STORE = FOLDER / "store"
QUEUE = f"embedded://{STORE}"
SECONDS = 60.0
"""How long all mail may take to arrive."""

MAX_SECONDS = 180.0
"""How long a run may take."""


class SmallDemo:
    """One run over a new directory."""

    def __init__(self, mail: Path) -> None:
        self.mails = read_mails(mail)
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._next_hop: int = free.getsockname()[1]

    async def run(self) -> Summary:
        """Do it all."""
        held = self.mails[0]
        async with self.mta() as program:
            with step(f"{len(self.mails)} mails by SMTP, while the next hop is away"):
                await asyncio.to_thread(
                    send, self.mails, "127.0.0.1", await program.port("listening")
                )
            with step("one of them is held"):
                await self.postroad("hold", "--recipient", held.recipient)
            await self.show_waiting()
            with step("the process is killed (SIGKILL)"):
                await program.kill()
        await self.postroad("verify", str(STORE))
        sink = SinkProcess(FOLDER / "sink")
        sink.port = self._next_hop
        with sink:
            async with self.mta():
                with step("another process over the same directory, and a next hop"):
                    await self.postroad("flush", "--all")
                    await self.arrive(sink, [each for each in self.mails if each is not held])
                with step("the held mail is released"):
                    await self.postroad("release", "--all")
                    await self.arrive(sink, self.mails)
                await asyncio.sleep(1)  # a second copy would come now
                await self.postroad("size")
            self.note(sink)
        return Summary.of(self.mails)

    @asynccontextmanager
    async def mta(self) -> AsyncIterator[Program]:
        """A running `postroad mta` over the directory."""
        words = ("mta", "--queue", QUEUE, "--listen", "127.0.0.1:0")
        print(f"$ postroad {' '.join(words)} --relay 127.0.0.1:{self._next_hop}", flush=True)
        program = await Program.start(FOLDER, *words, "--relay", f"127.0.0.1:{self._next_hop}")
        try:
            await program.until_ready()
            yield program
        finally:
            await program.stop()

    async def show_waiting(self) -> None:
        """Show the queue as a mail administrator sees it, beside the running process."""
        await self.postroad("size")
        await self.postroad("browse")

    async def postroad(self, *words: str) -> None:
        """Run a command and show what it prints. Raises: subprocess.CalledProcessError."""
        command = [*words, *([] if words[0] == "verify" else ["--queue", QUEUE])]
        print(f"$ postroad {' '.join(command)}", flush=True)
        program = [sys.executable, "-m", "postroad", *command]
        await asyncio.to_thread(subprocess.run, program, check=True, env=os.environ)

    async def arrive(self, sink: SinkProcess, mails: list[DemoMail]) -> None:
        """Wait until the next hop has these mails, as far as they were accepted."""
        wanted = [each.recipient for each in mails if each.accepted_at]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                while not sink.has_all(wanted):
                    await asyncio.sleep(0.1)

    def note(self, sink: SinkProcess) -> None:
        note_received(self.mails, ((each.recipient, each.at, each.content) for each in sink.each()))


def main() -> int:
    """Run the demo; returns 0 only when every mail accepted was delivered once."""
    parser = argparse.ArgumentParser(prog="make demo-small", description=__doc__.splitlines()[0])
    parser.add_argument("--mail", type=Path, default=SAMPLES, help="a folder of .eml files")
    options = parser.parse_args()
    demo = SmallDemo(options.mail)
    if not demo.mails:
        print(f"demo failed: {options.mail} holds no .eml files", file=sys.stderr)
        return 1
    try:
        summary = asyncio.run(asyncio.wait_for(demo.run(), MAX_SECONDS))
    except (OSError, AssertionError, subprocess.SubprocessError) as error:
        print(f"demo failed: {error or type(error).__name__}; logs: {FOLDER}", file=sys.stderr)
        return 1
    print_mails(demo.mails)
    print(f"The store and its log are in {FOLDER}")
    print(f"Its console: .venv/bin/postroad console --queue {QUEUE}")
    print(summary)
    return 0 if summary.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
