"""An intake with an outbox that is killed amid mail while its servers come and go: each mail with a
250 is in the queue exactly once. OUTBOX_KILLS and OUTBOX_SEED: how many kills, and which draw."""

from __future__ import annotations

import asyncio
import os
import random
import re
import smtplib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

import servers
from postroad import open_queue
from stack.forwarder import Forwarder
from support.lines import Lines
from support.ports import free_port
from support.programs import READY, Program

pytestmark = [pytest.mark.needs("rabbitmq", "cassandra", "s3"), pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("OUTBOX_KILLS", "12"))
SEED = int(os.environ.get("OUTBOX_SEED", "1"))
CLIENTS = 4
WITHIN_SECONDS = 120


class Scene:
    """A queue, lines to its servers, and an intake in front of it that is killed."""

    def __init__(self, folder: Path, lines: Lines, url: str) -> None:
        self.folder, self.lines, self.url = folder, lines, url
        self.port = free_port()
        self.acknowledged: list[str] = []
        self.offered = 0

    async def start(self, when: str, size: str = "1Gi") -> Program:
        """Start the intake; return when it listens, whatever servers are away."""
        document = {
            "listeners": [
                {"name": "relay", "role": "relay", "port": self.port, "host": "127.0.0.1"}
            ],
            "outbox": {"when": when, "size": size, "directory": str(self.folder / "outbox")},
        }
        file = self.folder / "intake.yaml"
        file.write_text(yaml.safe_dump(document))
        program = await Program.start(
            self.folder,
            *("intake", "--queue", self.url, "--intake", str(file)),
            environment=self.lines.variables,
        )
        async with asyncio.timeout(WITHIN_SECONDS):
            await program.port("listening")
        return program

    async def offer(self) -> None:
        """Send mail after mail until the intake is gone."""
        await asyncio.to_thread(self._send_until_killed)

    def _send_until_killed(self) -> None:
        try:
            with smtplib.SMTP("127.0.0.1", self.port, timeout=WITHIN_SECONDS) as client:
                while True:
                    self.send(client)
        except (smtplib.SMTPException, OSError):
            pass  # it was killed

    def send(self, client: smtplib.SMTP) -> None:
        self.offered += 1
        name = f"m{self.offered}-{random.getrandbits(32):x}"
        body = "x\r\n" * random.choice((1, 100, 100_000))
        client.sendmail(
            f"{name}@origin.example", ["b@dest.example"], f"Subject: {name}\r\n\r\n{body}"
        )
        self.acknowledged.append(name)

    async def until_empty(self, program: Program) -> None:
        async with asyncio.timeout(WITHIN_SECONDS):
            while await waiting(program):
                await asyncio.sleep(0.2)

    async def queued(self) -> Counter[str]:
        async with open_queue(self.url) as queue:
            return Counter([str(each.mail.sender).split("@")[0] async for each in queue.browse()])


async def waiting(program: Program) -> int:
    found = re.search(r"postroad_outbox_mails\{[^}]*\} (\S+)", await program.ask("/metrics"))
    assert found is not None
    return int(float(found[1]))


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    url = f"distributed://test.{servers.fresh()}"
    async with open_queue(url, create=True):
        pass
    lines = await Lines.to(os.environ)
    yield Scene(tmp_path, lines, url)
    await lines.close()


FAULTS: list[Callable[[Forwarder], object]] = [Forwarder.cut, Forwarder.silence]


@asynccontextmanager
async def faults(lines: Lines, draw: random.Random) -> AsyncIterator[None]:
    """Take servers away and give them back meanwhile, in an order that is drawn."""

    async def go_on() -> None:
        while True:
            name = draw.choice(sorted(lines.forwarders))
            fault = draw.choice(FAULTS)(lines.forwarders[name])
            if asyncio.iscoroutine(fault):
                await fault
            await asyncio.sleep(3 * draw.random())
            if draw.random() < 0.7:
                await lines.forwarders[name].mend()
            await asyncio.sleep(2 * draw.random())

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        for each in lines.forwarders.values():
            await each.mend()


async def test_killed_amid_mail_and_faults_each_acknowledged_mail_is_queued_once(
    scene: Scene,
) -> None:
    draw = random.Random(SEED)
    async with faults(scene.lines, draw):
        for _ in range(KILLS):
            program = await scene.start(draw.choice(["Unavailable", "First"]))
            clients = [asyncio.create_task(scene.offer()) for _ in range(CLIENTS)]
            await asyncio.sleep(2 * draw.random())
            await program.kill()
            await asyncio.gather(*clients)
    program = await scene.start("Unavailable")
    await scene.until_empty(program)
    assert await program.stop() == 0

    found, acknowledged = await scene.queued(), set(scene.acknowledged)
    print(f"{scene.offered} offered, {len(acknowledged)} acknowledged, {KILLS} kills")
    assert len(acknowledged) > KILLS
    assert acknowledged - found.keys() == set()
    assert {name: count for name, count in found.items() if count > 1} == {}
    async with open_queue(f"embedded://{scene.folder / 'outbox'}") as store:
        assert [each.reason async for each in store.dead_letters()] == []


async def test_an_intake_starts_accepts_and_stops_while_all_servers_are_away(scene: Scene) -> None:
    for each in scene.lines.forwarders.values():
        await each.cut()
    program = await scene.start("Unavailable", size="64Ki")
    assert (await program.ask("/readyz")).startswith(READY)

    def fill() -> tuple[int, int]:
        with smtplib.SMTP("127.0.0.1", scene.port, timeout=WITHIN_SECONDS) as client:
            for count in range(1000):
                try:
                    client.sendmail(
                        f"m{count}@x.example", ["b@y.example"], f"\r\n{'x' * 900}\r\n" * 9
                    )
                except smtplib.SMTPDataError as error:
                    return count, error.smtp_code
        return 1000, 0

    count, code = await asyncio.to_thread(fill)
    assert (0 < count < 9, code) == (True, 451)
    assert await waiting(program) == count
    assert await program.stop() == 0
    for each in scene.lines.forwarders.values():
        await each.mend()
    program = await scene.start("Unavailable")
    await scene.until_empty(program)
    assert await program.stop() == 0
    assert (await scene.queued()).total() == count


async def test_two_intakes_with_one_outbox_are_refused(scene: Scene) -> None:
    program = await scene.start("Unavailable")
    scene.port = free_port()
    other = await Program.start(
        scene.folder,
        *("intake", "--queue", scene.url, "--intake", str(scene.folder / "intake.yaml")),
        environment=scene.lines.variables,
    )
    async with asyncio.timeout(WITHIN_SECONDS):
        assert await other.stop_by_itself() != 0
    assert "another process owns the outbox" in other.log.read_text()
    assert await program.stop() == 0
