"""A run: mails for many sites wait, a worker delivers them and is killed at random, and started
again, until the queue is empty."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from kills.account import read_account
from kills.back_ends import BackEnd
from kills.check import Run
from kills.ledger import Finding, ItemProgress, Kind
from kills.mails import draw_mails
from kills.reports import Reports
from kills.sites import running_sites, until_quiet, write_routes
from support.programs import Program

MAX_LIFE = 20.0
"""Seconds until a worker is killed whatever has arrived: what the kills before left in the hands of
workers may be all that waits."""

MAX_END = 900.0
"""Seconds in which the last worker has to deliver what is left."""

EARLY, REMOVING = 10, 10
"""Of so many lives, one is ended within its first second, whatever it has done; in one of so many,
an administrator removes a mail."""


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    kills: int
    mails: int
    sites: int


class Soak:
    """One run, with its files in `folder`, which is empty. `module` stands in for postroad."""

    def __init__(
        self,
        back_end: BackEnd,
        folder: Path,
        size: Size,
        seed: int,
        *,
        module: str = "postroad",
        environment: dict[str, str] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._back_end, self._folder, self._size, self._module = back_end, folder, size, module
        self._draw, self._say = random.Random(seed), say
        self._mails = list(draw_mails(self._draw, size.mails, size.sites))
        self._ledger, self._reports = ItemProgress(), Reports()
        self._account, self._routes = folder / "account", folder / "delivery.yaml"
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._workers = AsyncExitStack()
        """Kills the workers that are left when a run breaks off."""
        self._environment = {
            "POSTROAD_RETRY_LANES": "1s",
            "POSTROAD_HOSTNAME": "mx.origin.example",
            "POSTROAD_WORKER_ATTEMPT_LOG": str(self._account),
            "POSTROAD_WORKER_ATTEMPT_LOG_ADDRESSES": "true",
            **back_end.environment,
            **(environment or {}),
        }

    async def run(self) -> Run:
        """Queue the mails, kill, and deliver what is left."""
        recipients = sum(len(each.recipients) for each in self._mails)
        await self._back_end.fill(self._mails)
        self._say(f"{len(self._mails)} mails for {recipients} recipients are queued")
        sites_of_run = running_sites(self._size.sites, self._ledger, self._reports)
        async with sites_of_run as sites, self._workers:
            write_routes(self._routes, sites)
            for number in range(1, self._size.kills + 1):
                worker = await self._start()
                left = recipients - len(self._ledger.copies)
                await self._live(worker, number, left // (self._size.kills - number + 2))
                await worker.kill()
                await until_quiet(sites)
                self._ledger.kill(await self._back_end.waiting(self._ledger.in_transit))
                if number % 10 == 0:
                    self._say(f"{number} kills, {self._ledger.arrivals} arrived")
            await self._finish()
        account = await asyncio.to_thread(read_account, self._account)
        return Run(self._mails, self._ledger, self._reports.names_by_key, account)

    async def _start(self) -> Program:
        worker = await Program.start(
            self._logs,
            *(*self._back_end.command, "--delivery", str(self._routes)),
            environment=self._environment,
            module=self._module,
        )
        self._workers.push_async_callback(worker.kill)
        return worker

    async def _live(self, worker: Program, number: int, most: int) -> None:
        """Let a worker live for a time that is drawn: that of some arrivals, most often."""
        if number % EARLY == 0:
            await asyncio.sleep(self._draw.random())
            return
        until = time.monotonic() + MAX_LIFE
        enough = self._ledger.arrivals + self._draw.randrange(max(1, most))
        if number % REMOVING == REMOVING // 2:
            await self._until(worker, (self._ledger.arrivals + enough) // 2, until)
            await self._remove()
        await self._until(worker, enough, until)

    async def _until(self, worker: Program, arrivals: int, until: float) -> None:
        while self._ledger.arrivals <= arrivals and time.monotonic() < until:
            assert worker.process.returncode is None, worker.log.read_text()
            await asyncio.sleep(0.002)

    async def _remove(self) -> None:
        """Remove a mail that waits, which some of its recipients may have."""
        drawn = self._draw.sample(self._mails, min(REMOVING, len(self._mails)))
        for mail in drawn:
            waits = any((key, "") not in self._ledger.copies for key in mail.keys)
            if waits and await self._back_end.remove(mail.sender):
                self._ledger.remove(mail.sender)
                return

    async def _finish(self) -> None:
        """Deliver what is left, without a kill."""
        worker = await self._start()
        await worker.until_ready()
        until = time.monotonic() + MAX_END
        while size := await self._back_end.size():
            if time.monotonic() > until:
                self._ledger.findings.append(Finding(Kind.WAITING, f"{size} mails"))
                break
            await asyncio.sleep(0.1)
        assert await worker.stop() == 0, worker.log.read_text()
