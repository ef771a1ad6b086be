"""Operators as processes, of which the leader meets a fault, round by round.

Each has a proxy of its own to the API server, whose times of writes show which process had effects
when. Queues that come and go give the leader something to write all the time; they name a
QueueCluster that does not exist, so that no server is needed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import yaml

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import MAIL_QUEUE
from support.api_proxy import ApiProxy, api_proxy
from support.programs import Program
from support.resources import mail_queue

LOAD_SECONDS = 0.5
"""Between two queues that are made, of which the older is deleted."""

TAKEOVER_SECONDS = 20.0
PATIENCE_SECONDS = 120.0
"""How long an operator may take at the most to have an effect, on a machine that is busy."""

SUSPENDED_SECONDS = 30.0
"""Two lifetimes of the Lease."""

ENDS_SECONDS = 30.0
"""How long a process that lost its Lease may run."""


@dataclass
class OperatorProcess:
    """An operator, and its proxy."""

    name: str
    program: Program
    proxy: ApiProxy

    def send(self, number: int) -> None:
        os.kill(self.program.pid, number)

    async def ended(self) -> int:
        async with asyncio.timeout(ENDS_SECONDS):
            return await self.program.process.wait()


@dataclass
class Rounds:
    """The operators of one class in one namespace. `takeovers`: in seconds."""

    api: ApiServer
    namespace: str
    folder: Path
    stack: AsyncExitStack
    every: list[OperatorProcess] = field(default_factory=list)
    takeovers: list[float] = field(default_factory=list)

    async def start(self) -> OperatorProcess:
        """Start one more operator."""
        proxy = await self.stack.enter_async_context(api_proxy(self.api))
        name = f"operator-{len(self.every)}"
        kubeconfig = self.folder / f"{name}.kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(kubeconfig_of(proxy.url)))
        names = ("--namespace", self.namespace, "--lease-namespace", self.namespace)
        program = await Program.start(
            self.folder, "operator", *names, environment={"KUBECONFIG": str(kubeconfig)}
        )
        self.every.append(OperatorProcess(name, program, proxy))
        return self.every[-1]

    async def leader(self, other_than: OperatorProcess | None = None, since: float = 0) -> str:
        """Return the name of the operator that had an effect after a moment; wait for it."""
        while True:
            for each in self.every:
                effects = each.proxy.effects
                if each is not other_than and effects and effects[-1].at > since:
                    return each.name
            await asyncio.sleep(0.05)

    async def after(self, fault: str) -> None:
        """Let the leader meet `kill`, `suspend` or `cut`; check the takeover, and replace it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            leader = self.named(await self.leader(since=time.monotonic()))
        began = time.monotonic()
        match fault:
            case "kill":
                leader.send(signal.SIGKILL)
            case "suspend":
                leader.send(signal.SIGSTOP)
            case "cut":
                leader.proxy.cut()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.leader(leader, began)
        self.takeovers.append(time.monotonic() - began)
        if fault == "suspend":
            await asyncio.sleep(max(0, began + SUSPENDED_SECONDS - time.monotonic()))
            leader.send(signal.SIGCONT)
        code = await leader.ended()
        assert code == (-signal.SIGKILL if fault == "kill" else 75), leader.program.log.read_text()
        await self.start()

    def named(self, name: str) -> OperatorProcess:
        return next(each for each in self.every if each.name == name)

    def check(self) -> None:
        """Raises: AssertionError where an operator had an effect after another one had."""
        writes = sorted((w.at, each.name) for each in self.every for w in each.proxy.effects)
        leaders = [name for name, _ in groupby(name for _, name in writes)]
        assert len(leaders) == len(set(leaders)), leaders

    async def _make_load(self) -> None:
        number = 0
        while True:
            number += 1
            made = await self.api.create(
                MAIL_QUEUE, mail_queue(self.namespace, f"load-{number}", clusterRef={"name": "no"})
            )
            await asyncio.sleep(LOAD_SECONDS)
            await self.api.delete(MAIL_QUEUE, made)


def kubeconfig_of(url: str) -> dict[str, object]:
    """Return a kubeconfig without credentials: the proxy has those."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxy",
        "clusters": [{"name": "proxy", "cluster": {"server": url}}],
        "users": [{"name": "proxied", "user": {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxied"}}],
    }


@asynccontextmanager
async def leader_rounds(api: ApiServer, namespace: str, folder: Path) -> AsyncIterator[Rounds]:
    """Yield two operators, under load."""
    async with AsyncExitStack() as stack:
        rounds = Rounds(api, namespace, folder, stack)
        load = asyncio.create_task(rounds._make_load())
        try:
            await rounds.start()
            await rounds.start()
            yield rounds
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
            for each in rounds.every:
                if each.program.process.returncode is None:
                    each.send(signal.SIGKILL)
                    await each.ended()
