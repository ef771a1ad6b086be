"""Back ends over real servers. `single` has one server of each kind, without faults of their own;
`cluster` has three nodes of each, which have every fault. Each actor is a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from chaos import clockwork, history, remains
from chaos.history import Event, FileRecorder
from chaos.nemesis import BIRTH, RATES, STEPS, Fault, Means, Menu, birth_offset, carry_out
from chaos.pace import QUICK
from chaos.process import Job
from postroad.adapters.clocks import MachineClock
from postroad.bootstrap.cluster import ClusterServers
from postroad.ports.view import TableOptions
from postroad.settings import from_environment
from support.servers import cql

QUEUES = ("q0", "q1")
PRODUCERS, WORKERS = ("producer-1", "producer-2"), ("worker-1", "worker-2", "worker-3")
ACTORS = (*PRODUCERS, *WORKERS, "administrator")
OPENING = 180.0
"""Seconds for all processes to open their queues, before any fault."""

STOPPING = 15.0
"""Seconds for a process to end by itself."""


class Actor:
    """One process, from life to life."""

    def __init__(self, town: Town, name: str) -> None:
        self._town, self.name = town, name
        self.controls = clockwork.Controls(town.directory / f"{name}.clock")
        self._lives = 0
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._suspended = False

    @property
    def life(self) -> str:
        return f"{self.name}#{self._lives}"

    async def start(self) -> None:
        """Begin a new life."""
        self._lives += 1
        directory = self._town.directory
        job = Job(
            role=self.name.partition("-")[0],
            life=self.life,
            directory=str(directory),
            seed=self._town.seed,
            queues=QUEUES,
            bucket=self._town.bucket,
            controls=str(directory / f"{self.name}.clock"),
            rate=self._town.rate / len(PRODUCERS),
            ports=self._town.ports,
            undo=self._town.undo,
        )
        path = directory / f"{self.life}.json"
        path.write_text(json.dumps(asdict(job)))
        self._town.note("started", self.life)
        with (directory / f"{self.life}.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "chaos.process", str(path),
                env={**os.environ, **self._town.environment(self.name)}, stdout=log, stderr=log,
            )  # fmt: skip
        self._watch = asyncio.ensure_future(self._note_end(self._process, self.life))

    async def _note_end(self, process: asyncio.subprocess.Process, life: str) -> None:
        code = await process.wait()
        # SIGTERM ends a process that has not opened its queues yet, because it has no handler for
        # it
        was_ended = code in (0, -signal.SIGKILL, -signal.SIGTERM)
        self._town.note("exited" if was_ended else "crashed", life)
        if not was_ended and self._town.restarts:
            await asyncio.sleep(2)
            await self.start()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        self._town.note("killed", self.life)
        self._signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    def stand_still(self) -> None:
        self._town.note("suspended", self.life)
        self._suspended = True
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self._suspended:
            self._suspended = False
            self._signal(signal.SIGCONT)
            self._town.note("resumed", self.life)

    async def stop(self) -> None:
        """Stop it in the orderly way, and kill it if that fails."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOPPING):
                await self.end()
        except TimeoutError:
            await self.kill()

    async def end(self) -> int:
        """Wait until it has ended; return its exit code."""
        assert self._process is not None
        return await self._process.wait()


class Town:
    """The processes over servers that the environment names, and their faults."""

    names: Sequence[str] = ACTORS
    ports: Mapping[str, int] = {}
    """Those of intakes, by queue."""

    def __init__(
        self, directory: Path, seed: int, rate: float = QUICK.mails, undo: str | None = None
    ) -> None:
        self.directory, self.seed, self.rate, self.undo = directory, seed, rate, undo
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.iterdir():
            old.unlink()
        self.name = f"chaos{secrets.token_hex(4)}"
        self.bucket = self.name
        self.restarts = True
        self._set_up_environment(self.base())
        self.recorder = FileRecorder(directory, "nemesis", clockwork.true_now)
        self.actors = {name: Actor(self, name) for name in self.names}

    def base(self) -> Mapping[str, str]:
        """Return the variables of the servers."""
        return os.environ

    def _set_up_environment(self, base: Mapping[str, str]) -> None:
        """Set the keyspace, the vhost and the bucket of the run in the environment of this process
        and its children."""
        os.environ.update({k: v for k, v in base.items() if k.startswith("POSTROAD_")})
        os.environ.update(self.own(base))

    def own(self, base: Mapping[str, str]) -> dict[str, str]:
        uri = base["POSTROAD_RABBITMQ_URI"].rpartition("/")[0]
        return {
            "POSTROAD_RABBITMQ_URI": f"{uri}/{self.name}",
            "POSTROAD_CASSANDRA_KEYSPACE": self.name,
            "POSTROAD_S3_BUCKET": self.bucket,
        }

    def environment(self, actor: str) -> Mapping[str, str]:
        """Return the variables of one process."""
        return {}

    def note(self, what: str, life: str) -> None:
        self.recorder.note("process", process=life, what=what)

    # Faults of processes

    @property
    def menu(self) -> Menu:
        return {
            "kill": Means(4, self.names),
            "suspend": Means(4, self.names),
            "vm pause": Means(3, self.names),
            "clock": Means(3, self.names, STEPS),
            "drift": Means(1, self.names, RATES),
        }

    async def begin(self, fault: Fault) -> None:
        actor = self.actors[fault.target]
        if fault.kind == "kill":
            await actor.kill()
        elif fault.kind == "clock":
            actor.controls.set(fault.amount)
        elif fault.kind == "drift":
            actor.controls.set(0, fault.amount)
        else:
            actor.stand_still()
            if fault.kind == "vm pause":
                self._pausing = asyncio.ensure_future(self._pause(actor, fault.lasts * 0.7))

    async def _pause(self, actor: Actor, seconds: float) -> None:
        await asyncio.sleep(seconds)
        actor.controls.lag += seconds
        actor.go_on()

    async def end(self, fault: Fault) -> None:
        actor = self.actors[fault.target]
        if fault.kind == "kill":
            if self.restarts:
                await actor.start()
        elif fault.kind == "suspend":
            actor.go_on()
        else:
            actor.controls.set(actor.controls.lag)

    async def heal(self) -> None:
        """Undo the faults of the servers."""

    # The run

    async def run(self, schedule: Sequence[Fault], seconds: float) -> list[Event]:
        """Let the processes work under a schedule of faults, and drain."""
        await self._make()
        try:
            await self._create(birth_offset(schedule))
            for actor in self.actors.values():
                await actor.start()
            await self._opened()
            later = [each for each in schedule if each.kind != BIRTH]
            nemesis = asyncio.ensure_future(carry_out(later, self, MachineClock(), self.recorder))
            await asyncio.sleep(seconds)
            # the load ends first, because a node that restarts under it may not serve for minutes
            self.restarts = False
            nemesis.cancel()
            for actor in self.actors.values():
                actor.go_on()
            stops = [each.stop() for each in self.actors.values()]
            await asyncio.gather(nemesis, *stops, return_exceptions=True)
            await self.heal()
            last = self.actors["drain"] = Actor(self, "drain")
            await last.start()
            await last.end()
        finally:
            self.restarts = False
            for actor in self.actors.values():
                actor.go_on()
                await actor.kill()
            await self._unmake()
        return history.read(self.directory)

    async def _opened(self) -> None:
        """Wait until every process has opened its queues: six at once take a while."""
        async with asyncio.timeout(OPENING):
            while sum(each.op == "open" for each in history.read(self.directory)) <= len(
                self.names
            ):
                await asyncio.sleep(0.5)

    async def _create(self, offset: float) -> None:
        creator = Actor(self, "creator")
        for wrong in (offset, 0.0):
            creator.controls.set(wrong)
            self.restarts = False
            await creator.start()
            code = await creator.end()
            self.restarts = True
            if code == 0:
                return
        raise RuntimeError(f"the queues could not be created: see {self.directory}")

    async def _make(self) -> None:
        """Make the run's vhost and keyspace."""
        user = remains.user()
        await asyncio.to_thread(remains.management, "vhosts/{vhost}", "PUT", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        await asyncio.to_thread(
            remains.management, f"permissions/{{vhost}}/{user}", "PUT", everything
        )
        servers = ClusterServers(from_environment())
        views = servers.views()
        replicas = min(3, await views.local_nodes())
        await views.create(
            TableOptions(
                {"class": "NetworkTopologyStrategy", servers.local_datacenter: str(replicas)},
                row_lifetime=timedelta(days=1),
                compaction_window=timedelta(hours=1),
                gc_grace=timedelta(hours=3),
            )
        )
        await servers.close()

    async def _unmake(self) -> None:
        """Remove what the servers have of the run; best effort."""
        steps: list[tuple[Any, ...]] = [
            (remains.management, "vhosts/{vhost}", "DELETE"),
            (cql, f"DROP KEYSPACE {self.name}"),
            (remains.drop_bucket, self.bucket),
        ]
        for step in steps:
            try:
                await asyncio.to_thread(*step)
            except Exception as error:
                print(f"left behind: {step[1:]}: {error!r}"[:200], file=sys.stderr)
