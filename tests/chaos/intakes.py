"""A back end whose mails come by SMTP: real servers, and before each queue an intake with a milter
and an outbox. The intakes are processes that have all faults of processes; their connections to the
servers are cut and fall silent, and the milter hangs or breaks off."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from chaos.history import Event
from chaos.nemesis import Fault, Means, Menu
from chaos.real import QUEUES, Town
from chaos.workload import FILTERED, TRAP
from postroad import open_queue
from support.lines import Lines
from support.ports import free_port
from support.scripted_milter import CONTINUE, ScriptedMilter, packet, running

INTAKES = {f"intake-{queue}": queue for queue in QUEUES}
WHEN = dict(zip(INTAKES, ("Unavailable", "First"), strict=True))

SERVERS = ("rabbitmq", "cassandra", "s3")

MARKS = packet(b"-", f"<{TRAP}>\0".encode()) + packet(b"i", b"\0\0\0\0" + FILTERED) + CONTINUE
"""The answer of the milter to the end of each mail: it removes a recipient, and adds a field."""

FAULTS = (None, b"")
"""What it does instead: it hangs, or breaks off."""

MAX_WAIT = 180.0
"""Seconds in which an outbox empties once its servers answer."""


class IntakeTown(Town):
    """The processes of `single`, and an intake for each queue."""

    names = (*Town.names, *INTAKES)

    def __init__(self, directory: Path, seed: int, rate: float, undo: str | None = None) -> None:
        super().__init__(directory, seed, rate, undo)
        self.outboxes = directory.with_name(f"{directory.name}-outboxes")
        self.ports = {queue: free_port() for queue in QUEUES}
        self._health = {name: free_port() for name in INTAKES}
        self._milter = ScriptedMilter(replies={b"E": MARKS})
        self._lines: Lines | None = None

    @property
    def menu(self) -> Menu:
        lines = tuple(SERVERS)
        return {
            **super().menu,
            "cut": Means(3, lines, control="line"),
            "silence": Means(3, lines, control="line"),
            "milter": Means(2, ("milter",), (0, 1)),
        }

    def environment(self, actor: str) -> Mapping[str, str]:
        if actor not in INTAKES or self._lines is None:
            return {}
        return {**self._lines.variables, "POSTROAD_HEALTH_PORT": str(self._health[actor])}

    async def begin(self, fault: Fault) -> None:
        assert self._lines is not None
        if fault.kind == "cut":
            await self._lines.forwarders[fault.target].cut()
        elif fault.kind == "silence":
            self._lines.forwarders[fault.target].silence()
        elif fault.kind == "milter":
            self._milter.replies[b"E"] = FAULTS[int(fault.amount)]
        else:
            await super().begin(fault)

    async def end(self, fault: Fault) -> None:
        assert self._lines is not None
        if fault.kind in ("cut", "silence"):
            await self._lines.forwarders[fault.target].mend()
        elif fault.kind == "milter":
            self._milter.replies[b"E"] = MARKS
        else:
            await super().end(fault)

    async def run(self, schedule: Sequence[Fault], seconds: float) -> list[Event]:
        shutil.rmtree(self.outboxes, ignore_errors=True)
        async with AsyncExitStack() as stack:
            milter = await stack.enter_async_context(running(self._milter))
            self._lines = await Lines.to(os.environ)
            stack.push_async_callback(self._lines.close)
            for name, queue in INTAKES.items():
                (self.directory / f"{name}.yaml").write_text(
                    yaml.safe_dump(self._document(name, queue, milter.address))
                )
            return await super().run(schedule, seconds)

    def _document(self, name: str, queue: str, milter: str) -> Mapping[str, Any]:
        listener = {"name": "relay", "role": "relay", "host": "127.0.0.1"}
        return {
            "listeners": [listener | {"port": self.ports[queue]}],
            "filters": [{"name": "marks", "milter": milter, "onError": "Defer", "timeout": "2s"}],
            "outbox": {
                "when": WHEN[name],
                "size": "1Gi",
                "directory": str(self.outboxes / name),
            },
        }

    async def heal(self) -> None:
        """Empty the outboxes, by intakes without faults."""
        assert self._lines is not None
        for each in self._lines.forwarders.values():
            await each.mend()
        for name in INTAKES:
            actor = self.actors[name]
            actor.controls.set(0.0)
            actor.controls.lag = 0.0
            await actor.start()
        for name in INTAKES:
            await self._emptied(name)
            await self.actors[name].stop()
            async with open_queue(f"embedded://{self.outboxes / name}") as store:
                left = [each.reason async for each in store.dead_letters()]
            self.recorder.note("remains", queue=name, remains={"outbox": left})

    async def _emptied(self, name: str) -> None:
        async with asyncio.timeout(MAX_WAIT):
            while True:
                found = await asyncio.to_thread(_metrics, self._health[name])
                if re.search(r"postroad_outbox_mails\{[^}]*\} 0\.0", found):
                    return
                await asyncio.sleep(0.5)


def _metrics(port: int) -> str:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""
