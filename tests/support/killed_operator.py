"""An operator process over real servers that dies behind one of its requests, and the next one.

Rounds have one MailQueue after the other, of one name. The operators are of a class of their own,
so that another one in the same cluster leaves them alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.bootstrap.cluster import ClusterServers
from postroad.controller.kubernetes.api import (
    LEASE,
    MAIL_QUEUE,
    QUEUE_CLUSTER,
    ROTATE,
    SECRET,
    USER_SINCE,
)
from postroad.controller.run.causes import lease_name
from postroad.controller.status.conditions import timestamp
from postroad.domain.queues.names import QueueName
from postroad.settings import from_environment
from support.kill_positions import Positions, killing_proxies
from support.leader_rounds import kubeconfig_of
from support.named_servers import named_cluster, named_secrets
from support.programs import Program
from support.queue_end import End, end_of
from support.resources import intake, mail_queue, view, workers

OPERATOR_CLASS = "killed"
NAME = "outgoing"
LEADERSHIP_LOST = 75
READY_SECONDS, END_SECONDS = 120.0, 90.0
POLL_SECONDS = 0.1
QUIET_SECONDS = 1.0
"""An operator that has written nothing for so long has nothing left to write but metrics."""

Act = Callable[["Rounds"], Awaitable[None]]


async def create(rounds: Rounds) -> None:
    parts = {"view": view("1h", 3), "workers": workers(), "intake": intake()}
    wanted = mail_queue(rounds.name.namespace, NAME, deletionPolicy="Delete", **parts)
    await rounds.api.create(MAIL_QUEUE, wanted)


async def change(rounds: Rounds) -> None:
    spec = {"view": view("30m", 5), "workers": {"concurrency": 3}, "intake": None}
    await rounds.api.patch(MAIL_QUEUE, rounds.name.namespace, NAME, {"spec": spec})


async def rotate(rounds: Rounds) -> None:
    """Ask for another user of RabbitMQ, of a queue that has its first one for an hour: an attempt
    that is broken off is repeated when the overlap since the last switch is over, ten minutes at
    least. After the period, 30 days, it would be switched before the annotation is there."""
    since = timestamp(datetime.now(UTC) - timedelta(hours=1))
    old = {"metadata": {"annotations": {USER_SINCE: since}}}
    await rounds.api.patch(SECRET, rounds.name.namespace, f"{NAME}-rabbitmq", old)
    asked = {"metadata": {"annotations": {ROTATE: "once"}}}
    await rounds.api.patch(MAIL_QUEUE, rounds.name.namespace, NAME, asked)


async def delete(rounds: Rounds) -> None:
    found = await rounds.api.get(MAIL_QUEUE, rounds.name.namespace, NAME)
    assert found is not None
    await rounds.api.delete(MAIL_QUEUE, found)


ACTS: Mapping[Act, Callable[[End], bool]] = {
    create: lambda end: is_current(end) and len(end["events"]) == 1,
    change: lambda end: is_current(end) and len(end["events"]) == 2,
    rotate: lambda end: end["users"] == ["a", "b"],
    delete: lambda end: end["queue"] is None,
}
"""What users do, in this order, and of what there is then whether it is carried out."""


def is_current(end: End) -> bool:
    """Whether the status is about the present spec, and Ready."""
    queue = end["queue"]
    return queue is not None and queue["is_current"] and has_ready(queue["conditions"])


@dataclass
class Rounds:
    """`module`: the program that runs as the operator; `url`: where it finds the API server.
    `ends` and `requests`: what each act ends in, and its requests, where nothing is killed."""

    api: ApiServer
    servers: ClusterServers
    name: QueueName
    folder: Path
    positions: Positions
    url: str
    module: str = "postroad"
    ends: dict[Act, End] = field(default_factory=dict)
    requests: dict[Act, list[str]] = field(default_factory=dict)
    _program: Program | None = None

    async def start(self) -> None:
        """Start an operator in the place of its predecessor, whose Lease is deleted: it would end
        by itself 15 seconds later. Return when the new one leads."""
        await self.stop()
        namespace, lease = self.name.namespace, lease_name(OPERATOR_CLASS)
        if (found := await self.api.get(LEASE, namespace, lease)) is not None:
            await self.api.delete(LEASE, found)
        kubeconfig = self.folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(kubeconfig_of(self.url)))
        self._program = await Program.start(
            self.folder,
            "operator",
            *("--namespace", namespace, "--lease-namespace", namespace, "--class", OPERATOR_CLASS),
            environment={"KUBECONFIG": str(kubeconfig)},
            module=self.module,
        )
        self.positions.pid = self._program.pid
        async with asyncio.timeout(READY_SECONDS):
            while await self.api.get(LEASE, namespace, lease) is None:
                assert self._program.process.returncode is None, self.log()
                await asyncio.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        """Kill the operator. Idempotent."""
        if self._program is not None:
            await self._program.kill()

    async def learn(self) -> None:
        """Carry all acts out without a kill."""
        gone = await self.end()
        for act, is_done in ACTS.items():
            self.positions.begin(None)
            await act(self)
            await self._until(is_done, act.__name__)
            await self._until_quiet()
            self.requests[act] = self.positions.names
            self.ends[act] = await self.end()
        self.ends[delete] = gone
        await self._until_end(delete, "nothing is killed")

    async def life(self, kills: Mapping[Act, Sequence[int]]) -> AsyncIterator[tuple[Act, str]]:
        """Carry the acts out until no kill is left; yield behind which requests the operator died.
        Raises: AssertionError where an end is another one than without kills."""
        left = [act for act in ACTS if kills[act]]
        for act in ACTS:
            if not left:
                return
            if act not in left:
                await self.carried_out(act)
                continue
            left.remove(act)
            if request := await self.killed(act, *kills[act]):
                yield act, request

    async def carried_out(self, act: Act) -> None:
        """Carry an act out without a kill."""
        self.positions.begin(None)
        await act(self)
        await self._until_end(act, "nothing is killed")
        await self._until_quiet()

    async def killed(self, act: Act, position: int) -> str | None:
        """Carry out an act whose operator dies behind a position, and start the next one. Return
        behind which request it died, None where it did not come so far. Raises: AssertionError
        where the end is another one."""
        self.positions.begin(position)
        await act(self)
        if not await self._until_killed(act):
            return None
        request = self.positions.names[-1]
        await self.start()
        await self._until_end(act, f"killed behind {request}")
        self.positions.begin(None)
        await self._until_quiet()
        return request

    async def remove(self) -> None:
        """Delete the MailQueue, if it is there, and wait until nothing of it is left."""
        self.positions.begin(None)  # and kill it no more
        found = await self.api.get(MAIL_QUEUE, self.name.namespace, NAME)
        if found is not None and "deletionTimestamp" not in found["metadata"]:
            await self.api.delete(MAIL_QUEUE, found)
        await self._until_end(delete, "removed")

    async def end(self) -> End:
        """Return what there is of the MailQueue."""
        return await end_of(self.api, self.servers, self.name)

    async def _until_quiet(self) -> None:
        """Wait until the operator writes no more."""
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS:
            if len(self.positions.names) > seen:
                seen, since = len(self.positions.names), time.monotonic()
            await asyncio.sleep(POLL_SECONDS)

    async def _until_killed(self, act: Act) -> bool:
        """Wait until the operator is killed, or has carried the act out and writes no more."""
        killed = self.positions.killed
        wanted = self.ends[act]
        await self._until(lambda end: killed.is_set() or end == wanted, act.__name__, wanted)
        if not killed.is_set():
            await self._until_quiet()
        return killed.is_set()

    async def _until_end(self, act: Act, what: str) -> None:
        """Raises: AssertionError with what differs."""
        wanted = self.ends[act]
        await self._until(lambda end: end == wanted, f"{act.__name__}, {what}", wanted)

    async def _until(
        self, claim: Callable[[End], bool], what: str, wanted: End | None = None
    ) -> None:
        deadline = time.monotonic() + END_SECONDS
        while not claim(found := await self.end()):
            await self._start_again()
            if time.monotonic() > deadline:
                different = "\n".join(differences(found, wanted or {}))
                raise AssertionError(f"{what}:\n{different}\n{self.log()}")
            await asyncio.sleep(POLL_SECONDS)

    async def _start_again(self) -> None:
        """Start the operator again where it ended by itself, as the kubelet does: on a machine that
        is busy for seconds it loses its Lease."""
        assert self._program is not None
        code = self._program.process.returncode
        if code is not None and not self.positions.killed.is_set():
            assert code == LEADERSHIP_LOST, self.log()
            await self.start()

    def log(self) -> str:
        """Return the last lines of the newest operator's log."""
        assert self._program is not None
        return self._program.log.read_text()[-3000:]


def differences(found: Any, wanted: Any, at: str = "") -> list[str]:
    """Return the paths at which two ends differ, with what is there and what should be."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted({*found, *wanted})
        pairs = [(f"{at}.{key}", found.get(key), wanted.get(key)) for key in keys]
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        pairs = [(f"{at}[{n}]", *both) for n, both in enumerate(zip(found, wanted, strict=True))]
    else:
        return [] if found == wanted else [f"{at.strip('.')}: {found} instead of {wanted}"]
    return [line for where, one, other in pairs for line in differences(one, other, where)]


@asynccontextmanager
async def rounds_over(
    api: ApiServer,
    variables: Mapping[str, str],
    namespace: str,
    folder: Path,
    module: str = "postroad",
) -> AsyncIterator[Rounds]:
    """Yield rounds in a namespace, with a QueueCluster that is ready, whose queues have users of
    their own at RabbitMQ, and an operator that runs."""
    positions, servers = Positions(), ClusterServers(from_environment(variables))
    async with killing_proxies(api, variables, positions) as (url, proxied):
        for each in named_secrets(variables, namespace):
            await api.create(SECRET, each)
        cluster = named_cluster(proxied, namespace, copies=1)
        cluster["spec"]["operatorClass"] = OPERATOR_CLASS
        cluster["spec"]["rabbitmq"]["users"] = {"overlap": "10m"}
        await api.create(QUEUE_CLUSTER, cluster)
        rounds = Rounds(
            api, servers, QueueName(namespace, NAME), folder, positions, url, module=module
        )
        try:
            await rounds.start()
            await _until_ready(api, namespace)
            yield rounds
        finally:
            await rounds.stop()
            await servers.close()


async def _until_ready(api: ApiServer, namespace: str) -> None:
    """Wait until the QueueCluster is ready."""
    async with asyncio.timeout(READY_SECONDS):
        while True:
            found = await api.get(QUEUE_CLUSTER, namespace, "main") or {}
            listed = found.get("status", {}).get("conditions", [])
            if has_ready([(each["type"], each["status"]) for each in listed]):
                return
            await asyncio.sleep(POLL_SECONDS)


def has_ready(conditions: Sequence[tuple[str, ...]]) -> bool:
    """Whether Ready is True."""
    return any(each[:2] == ("Ready", "True") for each in conditions)
