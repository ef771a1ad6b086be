"""Objects that no watch brings are read again at a bounded rate, the oldest first."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from postroad.controller.kubernetes.api import SECRET
from postroad.controller.reads import MIN_AGE, READS_A_SECOND, RememberedReads
from support.memory.clock import ManualClock
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld
from support.resources import secret


class Namespaces:
    """So many namespaces with a Secret each."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.api = MemoryKubernetes(KubernetesWorld(self.clock))
        self.reads = RememberedReads(self.api, self.clock)

    async def create(self, count: int) -> list[str]:
        names = [f"ns-{number}" for number in range(count)]
        for each in names:
            await self.api.create(SECRET, secret(each, "rabbitmq", {"a": "1"}))
        self.api.faults.steps.clear()
        return names

    async def read(self, *names: str) -> int:
        """Read the Secrets; return how many requests that took."""
        before = len(self.api.faults.steps)
        for each in names:
            assert await self.reads.get(SECRET, each, "rabbitmq")
        return len(self.api.faults.steps) - before


async def test_an_object_is_read_again_after_some_seconds() -> None:
    world = Namespaces()
    (name,) = await world.create(1)

    assert await world.read(name, name) == 1
    await world.clock.advance(MIN_AGE - timedelta(seconds=1))
    assert await world.read(name) == 0
    await world.clock.advance(timedelta(seconds=1))
    assert await world.read(name) == 1


async def test_a_missing_object_is_asked_for_each_time() -> None:
    world = Namespaces()
    for _ in range(3):
        assert await world.reads.get(SECRET, "none", "rabbitmq") is None
    assert len(world.api.faults.steps) == 3


async def test_many_objects_are_read_again_in_turn_at_a_bounded_rate() -> None:
    world = Namespaces()
    names = await world.create(600)
    assert await world.read(*names) == 600

    minutes = 20
    for _ in range(minutes):
        await world.clock.advance(timedelta(minutes=1))
        assert await world.read(*names) <= READS_A_SECOND * 60 + 1

    again = Counter(each.operation for each in world.api.faults.steps[600:])
    assert sum(again.values()) <= READS_A_SECOND * 60 * minutes
    assert again.keys() == {f"get secrets {each}/rabbitmq" for each in names}
    assert max(again.values()) - min(again.values()) <= 1


async def test_what_is_not_asked_for_is_forgotten() -> None:
    world = Namespaces()
    kept, left = await world.create(2)
    await world.read(kept, left)

    for _ in range(3):
        await world.clock.advance(MIN_AGE)
        await world.read(kept)
        world.reads.forget_old()

    assert await world.read(kept) == 0
    assert await world.read(left) == 1
