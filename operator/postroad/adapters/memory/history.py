"""The configuration history in memory, and a configuration that does not change."""

from dataclasses import dataclass, field

from postroad.adapters.memory.fault_injection import FaultInjector
from postroad.domain.configuration.history import ConfigurationEvent
from postroad.domain.configuration.rollout import Rollout
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import ConfigurationConflict
from postroad.ports.history import Effective, Recorded


@dataclass(slots=True)
class Records:
    """The history of one queue, as it outlives every process."""

    recorded: Recorded = field(default_factory=Recorded)


class MemoryHistory:
    """`History` over `Records`, as one process sees it."""

    def __init__(self, records: Records | None = None, faults: FaultInjector | None = None) -> None:
        self.records = records or Records()
        self._faults = faults or FaultInjector()

    async def load(self) -> Recorded:
        return await self._faults("view", "load", lambda: self.records.recorded)

    async def append(self, event: ConfigurationEvent) -> None:
        def effect() -> None:
            events, rollout = self.records.recorded.events, self.records.recorded.rollout
            present = {each.sequence: each for each in events}
            if present.get(event.sequence, event) != event:
                raise ConfigurationConflict(
                    f"the configuration history has another event {event.sequence} already"
                )
            present[event.sequence] = event
            ordered = tuple(present[each] for each in sorted(present))
            self.records.recorded = Recorded(ordered, rollout)

        await self._faults("view", "append", effect)

    async def advance(self, before: Rollout | None, after: Rollout) -> bool:
        def effect() -> bool:
            if self.records.recorded.rollout != before:
                return False
            self.records.recorded = Recorded(self.records.recorded.events, after)
            return True

        return await self._faults("view", "advance", effect)

    async def erase(self) -> None:
        def effect() -> None:
            self.records.recorded = Recorded()

        await self._faults("view", "erase history", effect)


class FixedConfiguration:
    """A `ConfigurationSource` without a history; a test assigns `current` to change it."""

    def __init__(self, configuration: ViewConfiguration | None = None) -> None:
        wanted = configuration or ViewConfiguration()
        self.current = Effective(wanted, (wanted,))

    def effective(self) -> Effective:
        return self.current
