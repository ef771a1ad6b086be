"""The operator in the test's own process: a real API server on one side, memory on the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from copy import copy
from datetime import timedelta
from threading import Event, Thread
from typing import Any

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.controller.kubernetes.api import (
    CONFIG_MAP,
    EVENT,
    FIELD_MANAGER,
    MAIL_QUEUE,
    SECRET,
)
from postroad.controller.reads import OWN
from postroad.controller.run import program
from postroad.controller.run.options import Intervals, Options
from postroad.errors import CredentialsRefused, LeadershipLost, PostroadError
from postroad.ports.kubernetes import Kind, Object
from postroad.ports.servers import Checked, Servers
from postroad.settings import Settings
from support import resources
from support.memory.fault_injection import Fault, FaultInjector, Step
from support.skipped_time import SkippedClock, SkippingLoop

IMAGE = "postroad:test"
QUICK = Intervals(
    metrics=timedelta(seconds=0.5),
    full=timedelta(seconds=1),
    clusters=timedelta(seconds=0.7),
    servers=timedelta(seconds=0.7),
    first_retry=timedelta(seconds=0.2),
)


LOOK_SECONDS = 0.05
"""Between two looks of a test at what the operator did."""


class Locked(MemoryServers):
    """Servers of which Cassandra does not know us."""

    async def check(self, *, brief: bool = False) -> dict[str, Checked]:
        error = CredentialsRefused("Cassandra refused the user or the password")
        return await super().check() | {"cassandra": Checked(error=error)}


class Running:
    """An operator that watches one namespace. `faults` makes servers go away, `settings` are those
    that it connected with, newest last. `skips`: how much of its time passes at once whenever a
    test looks again, for tests that wait for nothing but its intervals."""

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        *,
        operator_api: ApiServer | None = None,
        also: tuple[str, ...] = (),
        memory: MemoryWorld | None = None,
        clock: SkippedClock | None = None,
        lease_namespace: str = "",
        skips: timedelta = timedelta(0),
    ) -> None:
        self.api = api
        self._lease_namespace = lease_namespace or namespace
        self.clock = clock or SkippedClock()
        self._skips = skips
        self.namespace = namespace
        self.memory = memory or MemoryWorld(MachineClock())
        self.faults = FaultInjector()
        self.settings: list[Settings] = []
        self._also = also
        self.right_password = ""
        """When set, Cassandra refuses others."""

        self.outlasting: list[str] = []
        """Tasks that were under way when the program had ended."""

        self.refusals = 0
        self.held_back = 0
        """Writes to Kubernetes that the fence refused."""

        self._operator_api = operator_api or ApiServer(api.access, FIELD_MANAGER)
        """Its own, because its connections belong to its event loop."""

        self._ready = Event()
        self._thread: Thread | None = None
        self._program: program.Program | None = None
        self._loop: SkippingLoop | None = None
        self._failure: Exception | None = None

    def at(self, namespace: str) -> Running:
        """Return the same operator, asked about another namespace that it watches."""
        other = copy(self)
        other.namespace = namespace
        return other

    def connect(self, settings: Settings) -> Servers:
        self.settings.append(settings)
        password = settings.cassandra.password
        given = password.get_secret_value() if password else ""
        if self.right_password and given != self.right_password:
            return Locked(self.memory, FaultInjector(self._refuse))
        return MemoryServers(self.memory, self.faults)

    def _refuse(self, step: Step) -> Fault | None:
        if step.server == "view":
            self.refusals += 1
            raise CredentialsRefused("Cassandra refused the user or the password")
        return None

    def begin(self) -> None:
        """Start, and return at once. The operator has a thread and an event loop of its own: Kopf
        cancels every task of its loop when it ends."""
        self._thread = Thread(target=self._run, name="operator", daemon=True)
        self._thread.start()

    async def start(self) -> None:
        """Start, and return when it leads and all watches run."""
        self.begin()
        await self.until_leading()

    async def until_leading(self) -> None:
        """Wait until it leads and all watches run."""
        ready = await asyncio.to_thread(self._ready.wait, 20)
        if self._failure is not None:
            raise self._failure
        assert ready

    async def stop(self) -> None:
        """Stop in an orderly way. Raises what ended it before."""
        if self._thread is None:
            return
        assert self._loop is not None
        assert self._program is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._program.stop.set)
        await asyncio.to_thread(self.join)

    def join(self) -> None:
        """Wait until it ends. Raises what ended it."""
        assert self._thread is not None
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._thread = None
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                runner.run(self._serve())
        except Exception as error:
            self._failure = error
        except BaseExceptionGroup as died:
            if not self.faults.stopped:
                self._failure = AssertionError(repr(died))
        finally:
            self._ready.set()

    def _new_loop(self) -> SkippingLoop:
        self._loop = SkippingLoop()
        return self._loop

    async def _serve(self) -> None:
        clock, randomness = self.clock, SystemRandomness()
        options = Options(
            image=IMAGE,
            namespaces=(self.namespace, *self._also),
            lease_namespace=self._lease_namespace,
            intervals=QUICK,
        )
        unfenced = ApiServer(self._operator_api.access, FIELD_MANAGER)
        self.elector = program.elector_of(options, unfenced, clock, randomness)
        self._operator_api.guard = self._require
        dependencies = program.Dependencies(
            api=self._operator_api,
            unfenced=unfenced,
            elector=self.elector,
            connect=self.connect,
            clock=clock,
            randomness=randomness,
        )
        self._program = program.Program(dependencies, options)
        announcing = asyncio.create_task(self._announce(self._program))
        try:
            await self._program.run()
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            self.outlasting = [f"{each}" for each in others if each is not announcing]
            for each in others:  # one that outlasts a killed program would open connections anew
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._operator_api.close()
            await unfenced.close()

    def _require(self) -> None:
        try:
            self.elector.fence.require()
        except LeadershipLost:
            self.held_back += 1
            raise

    async def _announce(self, started: program.Program) -> None:
        await started.ready.wait()
        self._ready.set()

    async def apply(self, *wanted: Object) -> None:
        """Apply as a user would, with a field manager of one's own."""
        kinds = {each.name: each for each in (*OWN, SECRET)}
        for each in wanted:
            metadata = each["metadata"]
            place = (kinds[each["kind"]], metadata["namespace"], metadata["name"])
            if await self.api.get(*place) is None:
                await self.api.create(place[0], each)
            else:
                body: dict[str, Any] = {key: each[key] for key in ("spec", "data") if key in each}
                await self.api.patch(*place, body)

    async def apply_cluster(self, **spec: Any) -> None:
        """Apply the Secrets and the QueueCluster `main`."""
        await self.apply(*resources.secrets(self.namespace))
        await self.apply(resources.queue_cluster(self.namespace, **spec))

    async def queue(self, name: str = "outgoing") -> Object:
        """Return a MailQueue."""
        found = await self.api.get(MAIL_QUEUE, self.namespace, name)
        assert found is not None
        return found

    async def conditions(
        self, name: str = "outgoing", kind: Kind = MAIL_QUEUE
    ) -> Mapping[str, Object]:
        """Return the conditions of a resource by their types."""
        found = await self.api.get(kind, self.namespace, name) or {}
        listed = found.get("status", {}).get("conditions", [])
        return {each["type"]: each for each in listed}

    async def until(
        self,
        claim: Callable[[Mapping[str, Object]], object],
        name: str = "outgoing",
        kind: Kind = MAIL_QUEUE,
        seconds: float = 30,
    ) -> Mapping[str, Object]:
        """Wait until a claim holds about the conditions of the present generation."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            found = await self.api.get(kind, self.namespace, name) or {"metadata": {}}
            status = found.get("status", {})
            conditions = {each["type"]: each for each in status.get("conditions", [])}
            current = status.get("observedGeneration") == found["metadata"].get("generation")
            if current and conditions and claim(conditions):
                return conditions
            assert asyncio.get_running_loop().time() < deadline, status
            await self._before_a_look()

    async def until_ready(self, name: str = "outgoing", kind: Kind = MAIL_QUEUE) -> None:
        """Wait until a resource is ready."""
        await self.until(lambda found: found["Ready"]["status"] == "True", name, kind)

    async def skip(self, duration: timedelta) -> None:
        """Let so much of the operator's time pass at once, and return when it has."""
        assert self._loop is not None
        await self._loop.skip(duration, self.clock)

    async def _before_a_look(self) -> None:
        if self._skips:
            await self.skip(self._skips)
        await asyncio.sleep(LOOK_SECONDS)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def obstacle(self) -> str:
        """Return why the operator is not ready, nothing when it is."""
        if self._program is None:
            return "its thread starts"
        try:
            self._program.require_ready()
        except PostroadError as error:
            return str(error)
        return ""

    async def pause(self) -> None:
        """Let the operator go on for a moment."""
        await self._before_a_look()

    async def settle(self) -> None:
        """Let a few looks of every kind pass."""
        await asyncio.sleep(3 * QUICK.full.total_seconds())

    async def status(self, name: str = "outgoing") -> Object:
        """Return the status of a MailQueue."""
        found: Object = (await self.queue(name))["status"]
        return found

    async def change(self, spec: Mapping[str, Any], name: str = "outgoing") -> None:
        """Change fields of a MailQueue's spec."""
        assert await self.api.patch(MAIL_QUEUE, self.namespace, name, {"spec": spec})

    async def configuration_of_pods(self, name: str = "outgoing") -> Mapping[str, str]:
        """Return what the pods of a queue read from their environment."""
        found = await self.api.get(CONFIG_MAP, self.namespace, f"{name}-queue")
        assert found is not None
        data: Mapping[str, str] = found["data"]
        return data

    async def events(self, reason: str = "", kind: str = "") -> list[Object]:
        """Return the Events of the namespace."""
        return [
            each
            for each in await self.api.list(EVENT, self.namespace)
            if reason in ("", each["reason"]) and kind in ("", each["type"])
        ]

    async def until_told(self, reason: str, kind: str = "", seconds: float = 30) -> list[Object]:
        """Wait until there is such an Event, which comes behind the status that it is about."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not (found := await self.events(reason, kind)):
            assert asyncio.get_running_loop().time() < deadline, (reason, kind)
            await self._before_a_look()
        return found

    async def until_gone(self, kind: Kind, name: str, seconds: float = 30) -> None:
        """Wait until an object is no longer there."""
        deadline = asyncio.get_running_loop().time() + seconds
        while found := await self.api.get(kind, self.namespace, name):
            assert asyncio.get_running_loop().time() < deadline, found
            await self._before_a_look()
