"""Instructions of a mail through `postroad mta` in one process, counted by callgrind: 16 sessions
at a time hand in a mail of 10 kB each, which goes on to a next hop. Those that run by the clock are
counted at rest, and taken off for the time of the mails. Needs valgrind."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

from bench.mta_ways_in import CONTENT, by_smtp
from bench.results import Result, compared
from support.programs import Program
from support.sink import Sink

WARM, MAILS = 60, 150
REST_SECONDS = 20
GOAL = 2.3
"""Million instructions."""


async def measure(base: Path) -> list[Result]:
    """Count, and compare with the goal."""
    async with Sink() as sink:
        program = await Program.start(
            base,
            *("mta", "--queue", f"embedded://{base}/store", "--listen", "127.0.0.1:0"),
            *("--relay", f"127.0.0.1:{sink.port}", "--tls", "none"),
            before=("valgrind", "--tool=callgrind", f"--callgrind-out-file={base}/out"),
        )
        try:
            port = await program.port("listening")
            counter = _Counter(base, program.pid)

            async def deliver(mails: int) -> None:
                wanted = sink.received + mails
                await by_smtp(port, mails=mails)
                while sink.received < wanted:
                    await asyncio.sleep(0.01)

            await deliver(WARM)
            await counter.begin()
            began = time.monotonic()
            await deliver(MAILS)
            took = time.monotonic() - began
            spent = await counter.end()
            await counter.begin()
            await asyncio.sleep(REST_SECONDS)
            at_rest = await counter.end() / REST_SECONDS
        finally:
            await program.kill()
    a_mail = (spent - took * at_rest) / MAILS / 1e6
    return [
        compared(
            "instructions", f"a mail of {len(CONTENT)} octets, {took:.0f} s", "million",
            [a_mail], "goal", [GOAL], less_is_better=True,
        )
    ]  # fmt: skip


class _Counter:
    """Counts instructions of a process under callgrind."""

    def __init__(self, base: Path, pid: int) -> None:
        self._base, self._pid, self._dumps = base, pid, 0

    async def begin(self) -> None:
        await self._control("--zero")

    async def end(self) -> int:
        await self._control("--dump")
        self._dumps += 1
        text = (self._base / f"out.{self._dumps}").read_text()
        found = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
        assert found is not None
        return int(found[1])

    async def _control(self, what: str) -> None:
        process = await asyncio.create_subprocess_exec("callgrind_control", what, str(self._pid))
        assert await process.wait() == 0
