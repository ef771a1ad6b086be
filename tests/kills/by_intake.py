"""A run whose mails come by SMTP, through a milter and an outbox, into an intake that is killed
again and again: what it acknowledged is in the queue once, and as the milter left it."""

from __future__ import annotations

import asyncio
import random
import re
import smtplib
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import UUID

import yaml

from kills.back_ends import CONTENT, Distributed
from kills.mails import PlannedMail, domain_of_site
from postroad.distributed.mail_queue import DistributedQueue
from support.ports import free_port
from support.programs import Program
from support.scripted_milter import CONTINUE, ScriptedMilter, packet, running

CLIENTS = 4
TRAP = f"trap@{domain_of_site(0)}"
"""A recipient of each mail, which the milter removes: where it is passed by, a site has it."""

EMPTY = r"postroad_outbox_mails\{[^}]*\} 0\.0"

MAX_WAIT = 120.0
"""Seconds in which an intake listens, and in which an outbox empties."""


class ByIntake(Distributed):
    """A queue that an intake fills. `kills`: of the intake, beside those of the worker."""

    def __init__(
        self,
        url: str,
        queue: DistributedQueue,
        folder: Path,
        kills: int,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(url, queue)
        self._url, self._folder, self._kills, self._say = url, folder, kills, say
        self._draw = random.Random(seed)
        self._port, self._file = free_port(), folder / "intake.yaml"
        self._acknowledged = set[str]()

    async def fill(self, mails: Iterable[PlannedMail]) -> None:
        planned = {each.sender: each for each in mails}
        left = deque(planned.values())
        removing = packet(b"-", f"<{TRAP}>\0".encode()) + CONTINUE
        async with running(ScriptedMilter(replies={b"E": removing})) as milter:
            self._write(milter.address)
            for kill in range(self._kills):
                enough = self._draw.randrange(2 * len(left) // (self._kills - kill + 1) + 1)
                await self._live(left, len(self._acknowledged) + enough)
            self._say(f"{self._kills} kills of the intake, {len(self._acknowledged)} acknowledged")
            intake = await self._start()
            await self._deliver(intake, left)
            await self._look(planned)
            # Those whose reply a kill cut off, and which are not in the queue.
            unsure = [mail for sender, mail in planned.items() if sender not in self._ids]
            self._say(f"{len(unsure)} mails were cut off, and are sent again")
            await self._deliver(intake, deque(unsure))
            assert await intake.stop() == 0
        await self._look(planned)
        assert self._ids.keys() == planned.keys(), "a mail was refused"
        self._filled = max(self._ids.values())

    async def _live(self, left: deque[PlannedMail], enough: int) -> None:
        """Start an intake, and kill it when it has acknowledged so many mails."""
        intake = await self._start()
        sending = self._sending(left)
        while len(self._acknowledged) < enough and not sending.done():
            await asyncio.sleep(0.002)
        await intake.kill()
        await sending

    async def _deliver(self, intake: Program, left: deque[PlannedMail]) -> None:
        """Send mails, and wait until the outbox has forwarded them."""
        await self._sending(left)
        async with asyncio.timeout(MAX_WAIT + len(self._acknowledged) / 10):
            while not re.search(EMPTY, await intake.ask("/metrics")):
                await asyncio.sleep(0.2)

    def _write(self, milter: str) -> None:
        listener = {"name": "relay", "role": "relay", "port": self._port, "host": "127.0.0.1"}
        document = {
            "listeners": [listener],
            "filters": [{"name": "trap", "milter": milter, "onError": "Defer"}],
            "outbox": {"when": "First", "size": "1Gi", "directory": str(self._folder / "outbox")},
        }
        self._file.write_text(yaml.safe_dump(document))

    async def _start(self) -> Program:
        words = ("intake", "--queue", self._url, "--intake", str(self._file))
        intake = await Program.start(self._folder / "logs", *words)
        async with asyncio.timeout(MAX_WAIT):
            await intake.port("listening")
        return intake

    def _sending(self, left: deque[PlannedMail]) -> asyncio.Future[list[None]]:
        return asyncio.gather(*(asyncio.to_thread(self._send, left) for _ in range(CLIENTS)))

    def _send(self, left: deque[PlannedMail]) -> None:
        """Send what is left, until the intake is gone."""
        try:
            with smtplib.SMTP("127.0.0.1", self._port, timeout=MAX_WAIT) as client:
                while left:
                    mail = left.popleft()
                    client.sendmail(mail.sender, [*mail.recipients, TRAP], CONTENT)
                    self._acknowledged.add(mail.sender)
        except (smtplib.SMTPException, OSError, IndexError):
            pass  # it was killed, or another client has the last one

    async def _look(self, planned: dict[str, PlannedMail]) -> None:
        """Find the mails in the queue: each that was acknowledged is there, and none twice."""
        found = dict[str, UUID]()
        async for view in self._queue.browse():
            sender = view.mail.sender or ""
            assert sender not in found, f"{sender} is in the queue twice"
            assert set(view.mail.recipients) == set(planned[sender].recipients), sender
            found[sender] = view.enqueue_id
        lost = self._acknowledged - found.keys()
        assert not lost, f"{len(lost)} acknowledged mails are not in the queue, as {min(lost)}"
        self._ids = found
