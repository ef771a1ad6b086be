"""Processes over servers in memory, which can be killed at any step, and a count of transmissions
with which the engine's promises are checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from datetime import timedelta
from uuid import UUID

from contract.queue_harness import Consumer, VirtualTime, plain_mail
from postroad.adapters.memory.broker import BrokerQueues
from postroad.adapters.memory.servers import FixedConfiguration, MemoryServers, MemoryWorld
from postroad.adapters.memory.tables import Tables
from postroad.distributed.engine.engine import Parts
from postroad.distributed.engine.timing import Timing
from postroad.distributed.enqueue.withdrawal import IN_FLIGHT, NOT_FOLLOWED, NOT_WITHDRAWN
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.names import QueueName, key_of_owner
from postroad.errors import PostroadError
from postroad.ports.mail_queue import Item
from postroad.telemetry.metrics import UNWITHDRAWN
from support.memory.clock import ManualClock, SeededRandomness
from support.memory.fault_injection import Fault, FaultInjector, Plan, Step, no_fault

NAME = QueueName("mail", "outgoing")
WINDOW = timedelta(minutes=5)
LONG = timedelta(minutes=8)
"""Longer than a claim, several redelivery delays, a slice with its grace, and two leases."""


UNWITHDRAWN_REASONS = (NOT_WITHDRAWN, IN_FLIGHT, NOT_FOLLOWED)


def unwithdrawn(*reasons: str) -> float:
    """Return how many failed enqueues were counted for these reasons, or for any."""
    counters = (
        UNWITHDRAWN.labels(NAME.namespace, NAME.name, each)
        for each in reasons or UNWITHDRAWN_REASONS
    )
    return float(sum(each._value.get() for each in counters))


class Process:
    """One process: a handle, and the faults by which a test stops it."""

    def __init__(self, queue: DistributedQueue, faults: FaultInjector, clock: ManualClock) -> None:
        self.queue = queue
        self.faults = faults
        self.clock = clock

    def fail(self, plan: Plan) -> None:
        """Let steps from now on go wrong; the plan's numbers count from here."""
        first = len(self.faults.steps)
        self.faults.plan = lambda step: plan(type(step)(step.number - first, *_rest(step)))


def _rest(step: object) -> tuple[str, str]:
    return step.server, step.operation  # type: ignore[attr-defined]


def every_other(operation: str, fault: Fault) -> Plan:
    """Let every other step of one name go wrong, beginning with the first."""
    met = [0]

    def plan(step: Step) -> Fault | None:
        met[0] += step.operation == operation
        return fault if step.operation == operation and met[0] % 2 else None

    return plan


class Before:
    """Acts just before the first step of one name: a test sets it as `faults.before`."""

    def __init__(self, operation: str, act: Callable[[], Awaitable[object]]) -> None:
        self._operation = operation
        self._act = act
        self.happened = False

    async def __call__(self, step: Step) -> None:
        if not self.happened and step.operation == self._operation:
            self.happened = True
            await self._act()


class MailBytes(MutableMapping[str, bytes]):
    """The objects of a bucket but the owner objects of queues, which are no mail's."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    def __getitem__(self, key: str) -> bytes:
        return self._objects[key]

    def __setitem__(self, key: str, body: bytes) -> None:
        self._objects[key] = body

    def __delitem__(self, key: str) -> None:
        del self._objects[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._objects if key != key_of_owner(NAME))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class InMemoryCluster(VirtualTime):
    """The servers, the processes and the count of transmissions."""

    def __init__(
        self,
        seed: int = 0,
        timing: Timing | None = None,
        pace: int = 10**9,
        window: timedelta = WINDOW,
        buckets: int = 2,
    ) -> None:
        super().__init__(ManualClock())
        self.world = MemoryWorld(self.clock)
        self.transmitted: Counter[tuple[str, str]] = Counter()
        self.configuration = FixedConfiguration(ViewConfiguration(window, buckets, pace))
        self._timing = timing or Timing()
        self._seed = seed
        self.processes: list[Process] = []

    @property
    def tables(self) -> Tables:
        return self.world.tables(str(NAME))

    @property
    def broker(self) -> BrokerQueues:
        return self.world.queues(str(NAME))

    @property
    def blobs(self) -> MutableMapping[str, bytes]:
        return MailBytes(self.world.bucket("bucket").objects)

    def three_hosts(self, wrong: timedelta = timedelta(0)) -> None:
        """Let the view have three hosts, one of them with a clock that is wrong."""
        clocks = {"one": self.clock, "two": self.clock, "three": self.clock.beside(wrong)}
        self.world.view_hosts.update(clocks)

    async def start(self, skew: timedelta = timedelta(0)) -> Process:
        """Start one more process, which creates the queue if it is the first."""
        faults = FaultInjector(no_fault)
        servers = MemoryServers(self.world, faults)
        clock = self.clock.beside(skew)
        parts = Parts(
            name=NAME,
            broker=servers.broker(NAME),
            view=servers.views().view(str(NAME)),
            blobs=servers.blobs("bucket"),
            configuration=self.configuration,
            clock=clock,
            randomness=SeededRandomness(self._seed * 1000 + len(self.processes)),
            timing=self._timing,
            row_lifetime=self._row_lifetime,
            event_spool=servers.event_spool(NAME),
        )
        queue = await DistributedQueue.open(parts, create_missing=True)
        self.processes.append(Process(queue, faults, clock))
        return self.processes[-1]

    async def _row_lifetime(self) -> timedelta:
        return self.tables.row_lifetime

    async def enqueue(self, process: Process, *names: str, delay: float = 0) -> list[UUID]:
        """Queue mails under these names."""
        seconds = timedelta(seconds=delay)
        return [await process.queue.enqueue(plain_mail(name), seconds) for name in names]

    async def pass_time(self, duration: timedelta) -> None:
        """Let time pass for all processes and servers."""
        await self.clock.advance(duration)

    async def take(self, process: Process) -> tuple[Consumer, Item]:
        """Let a process lease one item."""
        consumer = Consumer(self, process.queue)
        return consumer, await consumer.next()

    async def give_up(self, process: Process, *names: str) -> None:
        """Enqueue mails that a consumer rejects."""
        await self.enqueue(process, *names)
        consumer = Consumer(self, process.queue)
        for _ in names:
            await (await consumer.next()).reject("no")
        await consumer.close()

    def transmit(self, item: Item) -> None:
        """Note that an item was transmitted to all its recipients."""
        for recipient in item.mail.recipients:
            self.transmitted[item.mail.name or "", recipient] += 1

    async def deliver(self, process: Process, within: timedelta = LONG) -> list[str]:
        """Deliver whatever comes within a time; return the names in order."""
        consumer = Consumer(self, process.queue, prefetch=50)
        names = []
        while not await consumer.nothing(within):
            item = await consumer.next()
            names.append(item.mail.name or "")
            self.transmit(item)
            await item.done()
        await consumer.close()
        return names

    async def recover(self) -> list[str]:
        """Let a healthy process maintain and deliver until nothing comes any more."""
        process = await self.start()
        names = await self.deliver(process)
        while True:
            await process.queue.maintain()
            more = await self.deliver(process)
            names += more
            if not more:
                return names

    async def audit(self) -> list[str]:
        """Let a healthy process audit when everything is old enough to be judged; return the keys
        of the objects that it deleted."""
        await self.pass_time(timedelta(hours=7))
        process = await self.start()
        return [each.blob_key async for each in process.queue.audit(repair=True)]

    def copies(self, name: str) -> int:
        """Return how often the first recipient of a mail was transmitted to."""
        return max((count for (of, _), count in self.transmitted.items() if of == name), default=0)

    def check_nothing_is_left(self, dead: Iterable[str] = (), in_flight: int = 0) -> None:
        """Nothing waits, no message and no byte is left, but for these dead letters; and all that
        was handed out is acked, but for as many items as a consumer has in flight."""
        assert [entry.envelope.name for entry in self.tables.live()] == []
        dead_letters = [each.entry for each in self.tables.dead_letters.values()]
        assert sorted(entry.envelope.name or "" for entry in dead_letters if entry) == sorted(dead)
        assert (len(self.broker.ready), self.broker.delayed, len(self.broker.dead)) == (0, 0, 0)
        assert (self.broker.unacked, self.broker.unacked_dead) == (in_flight, 0)
        assert set(self.blobs) == {entry.blob_key for entry in dead_letters if entry}

    def check_marks_have_rows(self) -> None:
        """No mark is without its row."""
        assert self.tables.marks.keys() <= self.tables.rows.keys()

    async def close(self) -> None:
        for process in self.processes:
            if process.faults.stopped:
                await _abandon(process)
            else:
                process.faults.plan = no_fault
                await process.queue.close()


async def _abandon(process: Process) -> None:
    """Take the tasks of a killed process out of the event loop."""
    try:
        await process.queue._leases.close()
    except PostroadError:
        pass
