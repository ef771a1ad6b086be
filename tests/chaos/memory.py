"""Back end `memory`: the whole run in this process, with servers in memory and time that the run
moves.

Hours pass in seconds. The effect of a fault is exact, because a fault hits single calls.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

from chaos import orderly
from chaos.drain import Remains, drain
from chaos.history import Event, ListRecorder, ordered
from chaos.nemesis import BIRTH, RATES, STEPS, Fault, Means, Menu, birth_offset, carry_out
from chaos.opening import NAMESPACE, Opening
from chaos.pace import PRODUCTION, Pace
from chaos.remains import TIMETABLES, is_stamped_late
from chaos.workload import Place, administrate, produce, work
from contract.queue_harness import VirtualTime
from postroad.adapters.memory.broker import MemoryBroker
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.domain.queues.names import QueueName, key_of_owner
from postroad.errors import ClockSkew
from postroad.ports.broker import Broker
from postroad.ports.mail_queue import MailQueue
from support.memory.clock import ManualClock, SeededRandomness
from support.memory.fault_injection import Fault as Broken
from support.memory.fault_injection import FaultInjector, Plan, Step

BUCKET = "chaos"
QUEUES = ("q0", "q1")
PRODUCERS, WORKERS = ("producer-1", "producer-2"), ("worker-1", "worker-2", "worker-3")
ACTORS = (*PRODUCERS, *WORKERS, "administrator")
SERVERS = ("view", "broker", "blobs")
RESTART = 10
"""Seconds until a process that crashed is restarted."""

SHARES = (0.1, 0.3, 1.0)


class ProcessClock(ManualClock):
    """The clocks of one process beside the true one: its date can be wrong or drift, and the clocks
    of a machine that stood still lag."""

    def __init__(self, true: ManualClock) -> None:
        super().__init__()
        self._time = true._time
        self.running = asyncio.Event()
        self.running.set()
        self.lag = timedelta(0)
        self.set(0.0)

    def set(self, offset: float, rate: float = 1.0) -> None:
        """Make the date wrong from now on."""
        self._offset, self._rate = timedelta(seconds=offset), rate
        self._since = self._time.elapsed

    def now(self) -> datetime:
        drift = (self._time.elapsed - self._since) * (self._rate - 1)
        exact = self._time.start + self._time.elapsed + self._offset + drift - self.lag
        return exact.replace(microsecond=exact.microsecond // 1000 * 1000)

    def elapsed(self) -> timedelta:
        return self._time.elapsed - self.lag

    async def sleep(self, duration: timedelta) -> None:
        await super().sleep(duration)
        await self.running.wait()


class Actor:
    """One process, from life to life."""

    def __init__(self, town: Town, name: str) -> None:
        self._town, self.name = town, name
        self.clock = ProcessClock(town.clock)
        self.faults = FaultInjector()
        self.brokers: list[MemoryBroker] = []
        self.place: Place | None = None
        self._lives = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def life(self) -> str:
        return f"{self.name}#{self._lives}"

    def opening(self) -> Opening:
        """Begin a new life, with connections of its own."""
        self._lives += 1
        self.faults = FaultInjector(self._town.plan_of(self.name))
        self.faults.before = self._before
        self.brokers = []
        self._town.note("started", self.life)
        return Opening(
            MemoryServers(self._town.world, self.faults),
            lambda name: BUCKET,
            self.clock,
            SeededRandomness(hash_of(self._town.seed, self.life)),
            ListRecorder(self._town.events, self.life, self._town.now),
            self._town.pace,
            self.clock.running.wait,
            self._keep,
        )

    def _keep(self, broker: Broker) -> Broker:
        self.brokers.append(cast("MemoryBroker", broker))
        return broker

    async def _before(self, step: Step) -> None:
        await self.clock.running.wait()
        delay = self._town.delay_of(step)
        if delay:
            await self.clock.sleep(timedelta(seconds=delay))

    def start(self) -> None:
        """Start a life, unless the end of another fault started one."""
        if self._task is not None and not self._task.done():
            return
        self._task = asyncio.ensure_future(self._live_on())

    async def _live_on(self) -> None:
        """Live; when a life ends by an error of its own, the next one follows, as under
        Kubernetes."""
        while True:
            try:
                return await self._live(self.opening())
            except Exception as error:
                self._town.note("crashed", self.life, error=repr(_first(error))[:300])
                self.faults.stop()
                await self.clock.sleep(timedelta(seconds=RESTART))

    async def _live(self, opening: Opening) -> None:
        """Open the queues, however long servers are away, and do the work of the process."""
        queues: dict[str, MailQueue] = {}
        randomness = random.Random(f"{self._town.seed}/{self.life}")
        for name in QUEUES:
            queues[name] = await opened(opening, name)

        async def set_up(queue: str) -> None:
            await opening.cut_anew(queue, randomness.random())

        place = Place(queues, self.clock, opening.recorder, randomness, self._town.pace, set_up)
        self.place = place
        if self.name == "drain":
            await drain(place, self._town.inspect)
        elif self.name in PRODUCERS:
            await produce(place, self._town.pace.mails / len(PRODUCERS))
        elif self.name in WORKERS:
            await work(place)
        else:
            await administrate(place)

    async def kill(self, how: str = "killed") -> None:
        """End this life at once."""
        if self.faults.stopped:
            return
        self._town.note(how, self.life)
        self.faults.stop()
        self.clock.running.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def stand_still(self) -> None:
        self._town.note("suspended", self.life)
        self.clock.running.clear()

    def go_on(self) -> None:
        if not self.clock.running.is_set():
            self._town.note("resumed", self.life)
            self.clock.running.set()

    def disconnect(self) -> None:
        for each in self.brokers:
            each.disconnect()

    async def end(self) -> None:
        """Wait for work that ends by itself. Raises: what it raised."""
        assert self._task is not None
        await self._task


def _first(error: BaseException) -> BaseException:
    """Return the first single error within a task group's error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def hash_of(*parts: object) -> int:
    """Return a number that depends on the arguments alone."""
    return random.Random("/".join(map(str, parts))).getrandbits(48)


async def opened(opening: Opening, name: str, *, create: bool = False) -> MailQueue:
    """Open a queue, again and again."""
    while True:
        try:
            return await opening.open(name, create=create)
        except Exception:
            await opening.clock.sleep(timedelta(seconds=5))


class Town:
    """The servers, the processes and their faults."""

    def __init__(self, seed: int, pace: Pace = PRODUCTION) -> None:
        self.seed, self.pace = seed, pace
        self.clock = ManualClock()
        self.world = MemoryWorld(self.clock)
        self.events: list[Event] = []
        self._randomness = random.Random(f"town/{seed}")
        self._wrong: dict[int, Fault] = {}
        self.actors = {name: Actor(self, name) for name in ACTORS}
        self.recorder = ListRecorder(self.events, "nemesis", self.now)

    def now(self) -> float:
        return self.clock.elapsed().total_seconds()

    def note(self, what: str, life: str, error: str | None = None) -> None:
        self.recorder.note("process", process=life, what=what, error=error)

    # Faults of servers

    @property
    def menu(self) -> Menu:
        cuts = tuple(f"{actor}|{server}" for actor in ACTORS for server in SERVERS)
        moving = (*PRODUCERS, *WORKERS, "administrator")
        return {
            "away": Means(3, (*SERVERS, "all")),
            "cut": Means(3, cuts),
            "rollout": Means(2, ("workers",)),
            "lost answers": Means(3, SERVERS, SHARES),
            "flaky": Means(2, SERVERS, SHARES[:2]),
            "unconfirmed": Means(3, ("broker",), SHARES),
            "undeleted": Means(2, ("blobs",), SHARES),
            "slow": Means(2, SERVERS, (0.5, 3, 10)),
            "disconnect": Means(3, (*WORKERS, "all")),
            "kill": Means(4, moving),
            "suspend": Means(4, moving, (0, 1)),
            "vm pause": Means(2, moving),
            "clock": Means(3, moving, STEPS),
            "drift": Means(1, moving, RATES),
        }

    def plan_of(self, actor: str) -> Plan:
        def plan(step: Step) -> Broken | None:
            for fault in self._wrong.values():
                broken = self._meets(fault, actor, step)
                if broken is not None:
                    return broken
            return None

        return plan

    def _meets(self, fault: Fault, actor: str, step: Step) -> Broken | None:
        kind, target = fault.kind, fault.target
        if kind == "away" and target in (step.server, "all"):
            return Broken.AWAY
        if kind == "cut" and target == f"{actor}|{step.server}":
            return Broken.AWAY
        if step.server != target or self._randomness.random() >= fault.amount:
            return None
        if kind == "lost answers" or (kind == "unconfirmed" and step.operation == "publish"):
            return Broken.ANSWER_LOST
        if kind == "flaky" or (kind == "undeleted" and step.operation == "delete"):
            return Broken.LOST
        return None

    def delay_of(self, step: Step) -> float:
        slow = (each for each in self._wrong.values() if each.kind == "slow")
        return sum(each.amount for each in slow if each.target == step.server)

    async def begin(self, fault: Fault) -> None:
        actor = self.actors.get(fault.target)
        self._wrong[fault.number] = fault
        if fault.kind == "disconnect" or (fault.kind == "away" and fault.target != "blobs"):
            for each in [actor] if actor else self.actors.values():
                each.disconnect()
        elif fault.kind == "rollout":
            for name in WORKERS:
                await self.actors[name].kill()
        elif fault.kind == "cut" and fault.target.endswith("|broker"):
            self.actors[fault.target.partition("|")[0]].disconnect()
        elif actor is not None:
            await self._begin_with(actor, fault)

    async def _begin_with(self, actor: Actor, fault: Fault) -> None:
        if fault.kind == "kill":
            await actor.kill()
        elif fault.kind in ("suspend", "vm pause"):
            actor.stand_still()
            if fault.amount:
                actor.disconnect()
            if fault.kind == "vm pause":
                self._resume_at = asyncio.ensure_future(self._pause(actor, fault))
        elif fault.kind == "clock":
            actor.clock.set(fault.amount)
        elif fault.kind == "drift":
            actor.clock.set(0, fault.amount)

    async def _pause(self, actor: Actor, fault: Fault) -> None:
        """The machine stands still for most of the fault; until the fault ends, its date is behind.
        A process that was killed meanwhile runs on another machine."""
        paused, life = timedelta(seconds=fault.lasts * 0.7), actor.life
        actor.disconnect()
        await self.clock.sleep(paused)
        if actor.life == life:
            actor.clock.lag += paused
        actor.go_on()

    async def end(self, fault: Fault) -> None:
        del self._wrong[fault.number]
        if fault.kind == "rollout":
            for name in WORKERS:
                self.actors[name].start()
        actor = self.actors.get(fault.target)
        if actor is None or fault.kind == "disconnect":
            return
        if fault.kind == "kill":
            actor.start()
        elif fault.kind == "suspend":
            actor.go_on()
        else:
            actor.clock.set(actor.clock.lag.total_seconds())

    # The run

    async def run(self, schedule: Sequence[Fault], seconds: float) -> list[Event]:
        """Let the processes work under a schedule of faults, and drain."""
        await self._create(birth_offset(schedule))
        for actor in self.actors.values():
            actor.start()
        later = [each for each in schedule if each.kind != BIRTH]
        nemesis = asyncio.ensure_future(carry_out(later, self, self.clock, self.recorder))
        await self.clock.sleep(timedelta(seconds=seconds))
        nemesis.cancel()
        await asyncio.gather(nemesis, return_exceptions=True)
        for actor in self.actors.values():
            await actor.kill("stopped")
        last = self.actors["drain"] = Actor(self, "drain")
        last.start()
        await last.end()
        await last.kill("stopped")
        return ordered(self.events)

    async def _create(self, offset: float) -> None:
        creator = Actor(self, "creator")
        creator.clock.set(offset)
        opening = creator.opening()
        for name in QUEUES:
            try:
                queue: MailQueue = await opening.open(name, create=True)
            except ClockSkew:  # an administrator sets its clock right
                creator.clock.set(0)
                queue = await opened(opening, name, create=True)
            await queue.close()

    async def inspect(self, queue: str) -> Remains:
        """Return what the servers have of a queue. Two kinds of marks whose slice was cleaned have
        a lifetime and are left out: marks without a row, which endings wrote that came late, and
        the row and mark of late mail that got a new entry."""
        name = f"{NAMESPACE}.{queue}"
        tables, queues = self.world.tables(name), self.world.queues(name)
        start = tables.limits.content_start
        rows = {
            each
            for each in tables.unexpired()
            if not (
                start is not None
                and each.slice_start < start
                and each in tables.marks
                and is_stamped_late(each.enqueue_id, tables.written[each].timestamp())
            )
        }
        now = self.clock.elapsed()
        messages = [*queues.ready, *queues.delayed_messages, *queues.dead]
        return {
            "rows": [str(each) for each in sorted(rows)],
            "marks": [
                str(each)
                for each in tables.marks
                if each in rows or start is None or each.slice_start >= start
            ],
            "claims": [
                str(each)
                for each, (_, until) in tables.claims.items()
                if until > now and each not in TIMETABLES
            ],
            "dead_letters": [str(each) for each in tables.dead_letters],
            "messages": [str(each.message_id) for each in messages],
            "objects": [
                each
                for each in self.world.bucket(BUCKET).objects
                if each.startswith(f"{name}/") and each != key_of_owner(QueueName.parse(name))
            ],
        }


def run(
    seed: int, schedule: Sequence[Fault], seconds: float, pace: Pace = PRODUCTION
) -> list[Event]:
    """Return the history of a run."""

    async def main() -> list[Event]:
        town = Town(seed, pace)
        running = asyncio.ensure_future(town.run(schedule, seconds))
        done = await VirtualTime(town.clock).outcome(
            running, timedelta(seconds=seconds + 2 * pace.drain_timeout) + pace.timing.upload
        )
        assert done, "the run did not end"
        return running.result()

    return orderly.run(main())


def menu() -> Menu:
    """Return the faults that this back end has."""
    return Town(0).menu
