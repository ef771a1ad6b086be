"""All servers of a cluster in memory: among them the configuration history, one that does not
change, and the users of a broker. No adapter in memory asks for a login: a test looks at the users.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from postroad.adapters.memory.blobs import Bucket, MemoryBlobs
from postroad.adapters.memory.broker import BrokerQueues, MemoryBroker, MemoryClaimRecord
from postroad.adapters.memory.event_spool import MemoryEventSpool, MemoryStreams
from postroad.adapters.memory.steps import ProcessSteps, step
from postroad.adapters.memory.tables import Tables
from postroad.adapters.memory.view import MemoryView, MemoryViewStore, Schema
from postroad.domain.configuration.history import ConfigurationEvent, Rollout
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.broker_users import QueueUser
from postroad.domain.queues.names import QueueName
from postroad.errors import ConfigurationConflict
from postroad.ports.clock import Clock
from postroad.ports.servers import Checked
from postroad.ports.view import Effective, Recorded


@dataclass(slots=True)
class Records:
    """The history of one queue, as it outlives every process."""

    recorded: Recorded = field(default_factory=Recorded)


class MemoryHistory:
    """`History` over `Records`, as one process sees it."""

    def __init__(self, records: Records | None = None, steps: ProcessSteps | None = None) -> None:
        self.records = records or Records()
        self.steps = steps or ProcessSteps()

    async def load(self) -> Recorded:
        return await self.steps("view", "load", lambda: self.records.recorded)

    @step("view")
    def append(self, event: ConfigurationEvent) -> None:
        events, rollout = self.records.recorded.events, self.records.recorded.rollout
        present = {each.sequence: each for each in events}
        if present.get(event.sequence, event) != event:
            raise ConfigurationConflict(
                f"the configuration history has another event {event.sequence} already"
            )
        present[event.sequence] = event
        ordered = tuple(present[each] for each in sorted(present))
        self.records.recorded = Recorded(ordered, rollout)

    @step("view")
    def advance(self, before: Rollout | None, after: Rollout) -> bool:
        if self.records.recorded.rollout != before:
            return False
        self.records.recorded = Recorded(self.records.recorded.events, after)
        return True

    @step("view", "erase history")
    def erase(self) -> None:
        self.records.recorded = Recorded()


class FixedConfiguration:
    """A `ConfigurationSource` without a history; a test assigns `current` to change it."""

    def __init__(self, configuration: ViewConfiguration | None = None) -> None:
        wanted = configuration or ViewConfiguration()
        self.current = Effective(wanted, (wanted,))

    def effective(self) -> Effective:
        return self.current


@dataclass(slots=True)
class MemoryUser:
    """A user. Its repr has no password."""

    password: str = field(repr=False)
    has_rights: bool = True


class MemoryQueueUsers:
    """`QueueUsers` of one process, over the users of a broker by their names."""

    def __init__(self, users: dict[str, MemoryUser], steps: ProcessSteps) -> None:
        self._users = users
        self.steps = steps

    @step("broker", "list users")
    def made_for(self, token: str) -> Collection[QueueUser]:
        found = (QueueUser.parse(each) for each in self._users)
        return [each for each in found if each is not None and each.token == token]

    @step("broker", "get user")
    def has_rights(self, user: QueueUser) -> bool | None:
        found = self._users.get(str(user))
        return None if found is None else found.has_rights

    @step("broker", "put user")
    def give(self, user: QueueUser, password: str) -> None:
        self._users[str(user)] = MemoryUser(password)

    async def delete(self, user: QueueUser) -> None:
        await self.steps("broker", "delete user", lambda: self._users.pop(str(user), None))


class MemoryWorld:
    """The contents of the servers, which outlive every process. `clock` is the servers'; a test may
    set `view_hosts`, the clocks that the view's hosts show."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.view_hosts: dict[str, Clock] = {"one": clock}
        self.schema = Schema()
        self.users: dict[str, MemoryUser] = {}
        self.streams: dict[str, set[str]] = {}
        self._queues: dict[str, BrokerQueues] = {}
        self._tables: dict[str, Tables] = {}
        self._records: dict[str, Records] = {}
        self._buckets: dict[str, Bucket] = {}
        self._events: dict[str, MemoryStreams] = {}

    def other_keyspace(self) -> MemoryWorld:
        """Return a world with the same broker and the same buckets."""
        other = MemoryWorld(self.clock)
        other._queues, other._buckets = self._queues, self._buckets
        other.users, other.streams = self.users, self.streams
        return other

    def queues(self, queue: str) -> BrokerQueues:
        return self._queues.setdefault(queue, BrokerQueues(self.clock))

    def delayed(self) -> int:
        """Return how many messages are in the delay queues, which all queues share."""
        for queues in self._queues.values():
            queues.ripen()
        return sum(queues.delayed for queues in self._queues.values())

    def tables(self, queue: str) -> Tables:
        return self._tables.setdefault(queue, Tables(self.clock, self.view_hosts))

    def records(self, queue: str) -> Records:
        return self._records.setdefault(queue, Records())

    def events(self, queue: str) -> MemoryStreams:
        return self._events.setdefault(queue, MemoryStreams())

    def bucket(self, name: str) -> Bucket:
        return self._buckets.setdefault(name, Bucket())


class MemoryServers:
    def __init__(self, world: MemoryWorld, steps: ProcessSteps | None = None) -> None:
        self.world = world
        self.steps = steps or ProcessSteps()

    def broker(self, queue: QueueName, *, delivery_limit: int = 20) -> MemoryBroker:
        return MemoryBroker(
            self.world.queues(str(queue)), self.world.delayed, self.steps, delivery_limit
        )

    def views(self) -> MemoryViewStore:
        return MemoryViewStore(
            lambda queue: MemoryView(self.world.tables(queue), self.steps),
            self.steps,
            self.world.schema,
        )

    def history(self, queue: QueueName) -> MemoryHistory:
        return MemoryHistory(self.world.records(str(queue)), self.steps)

    def keyspace_claim(self) -> MemoryClaimRecord:
        schema = self.world.schema
        return MemoryClaimRecord(
            schema.claimed, self.steps, "view", lambda: schema.options is not None
        )

    def queue_claim(self, queue: QueueName) -> MemoryClaimRecord:
        return MemoryClaimRecord(self.world.queues(str(queue)).claimed, self.steps, "broker")

    def queue_users(self) -> MemoryQueueUsers:
        return MemoryQueueUsers(self.world.users, self.steps)

    def blobs(self, bucket: str) -> MemoryBlobs:
        return MemoryBlobs(self.world.bucket(bucket), self.steps)

    def event_spool(self, queue: QueueName) -> MemoryEventSpool:
        return MemoryEventSpool(self.world.events(str(queue)), self.steps)

    async def declare_streams(self, queue: QueueName, streams: Collection[str]) -> None:
        self.world.streams[str(queue)] = set(streams)

    async def check(self, *, brief: bool = False) -> dict[str, Checked]:
        return {server: Checked("memory") for server in ("rabbitmq", "cassandra", "s3")}

    async def close(self) -> None:
        """Nothing to release."""
