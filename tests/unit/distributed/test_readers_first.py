"""A change of configuration under running processes: every mail is browsed and counted once.

Several processes, each with its own knowledge of one history, write, browse and move browse start
in a model of the view, while the configuration changes, processes lose the view for a while, start
and stop. The same run without the protection loses mail from sight, so the test can fail.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from postroad.adapters.memory.servers import MemoryHistory
from postroad.configuration import LeasedConfiguration, adopt, settle
from postroad.domain.configuration.history import Rollout, versions
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import Partition, place, slice_of
from postroad.domain.values.identifiers import Identifiers
from postroad.errors import ConfigurationStale, HistoryMissing, QueueNotFound
from postroad.ports.view import Effective, Recorded
from support.memory.clock import ManualClock, SeededRandomness
from support.memory.fault_injection import FaultInjector, away

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LEASE, GRACE, DEADLINE = 30 * SECOND, 20 * SECOND, 19 * SECOND
CHANGES = (
    ViewConfiguration(240 * SECOND, 1),
    ViewConfiguration(120 * SECOND, 3),
    ViewConfiguration(40 * SECOND, 4),
    ViewConfiguration(10 * SECOND, 4),
    ViewConfiguration(5 * SECOND, 7),
)


class Hasty:
    """Knows the newest configuration and uses it at once, for ever: no lease protects anything."""

    def __init__(self, history: MemoryHistory) -> None:
        self._history = history
        self._newest: ViewConfiguration | None = None

    async def refresh(self) -> None:
        known = versions((await self._history.load()).events)
        self._newest = known[max(known)]

    def effective(self) -> Effective:
        assert self._newest is not None
        return Effective(self._newest, (self._newest,))


@dataclass
class MemoryWorld:
    """The view: rows by partition, rows on their way, and browse start."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    history: MemoryHistory = field(default_factory=MemoryHistory)
    rows: dict[Partition, set[UUID]] = field(default_factory=dict)
    arriving: list[tuple[timedelta, Partition, UUID]] = field(default_factory=list)
    browse_start: datetime = START - timedelta(hours=1)

    def live(self) -> set[UUID]:
        return set().union(*self.rows.values())

    def deliver(self, identifiers: list[UUID]) -> None:
        for partition, row in [*self.rows.items()]:
            row.difference_update(identifiers)
            if not row:
                del self.rows[partition]

    def arrive(self) -> None:
        """Let rows reach the view whose insertion took until now."""
        for due, partition, identifier in [*self.arriving]:
            if due <= self.clock.elapsed():
                self.rows.setdefault(partition, set()).add(identifier)
                self.arriving.remove((due, partition, identifier))

    def visible(self, reading: tuple[ViewConfiguration, ...]) -> dict[Partition, set[UUID]]:
        """Return what a reader of these configurations finds, partition by partition."""
        return {
            partition: row
            for partition, row in self.rows.items()
            if any(self._is_read(partition, each) for each in reading)
        }

    def _is_read(self, partition: Partition, configuration: ViewConfiguration) -> bool:
        window, start = configuration.slice_window, partition.slice_start
        in_time = slice_of(self.browse_start, window) <= start <= self.clock.now()
        is_a_slice = slice_of(start, window) == start
        return in_time and is_a_slice and partition.bucket_id < configuration.bucket_count


@dataclass
class Process:
    """One process of the queue. `away` is how long it cannot read the history."""

    world: MemoryWorld
    randomness: random.Random
    source: LeasedConfiguration | Hasty
    read_at: timedelta = timedelta(0)
    away: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        self.ids = Identifiers(self.world.clock.now, self.randomness.getrandbits)

    async def live(self) -> int:
        """Do one second's work; return how many mails were not seen, or seen twice."""
        now = self.world.clock.elapsed()
        if now >= self.away and now - self.read_at >= LEASE / 4:
            await self.source.refresh()
            self.read_at = now
        if self.randomness.random() < 0.02:
            self.away = now + self.randomness.randrange(80) * SECOND
        try:
            effective = self.source.effective()
        except ConfigurationStale:
            return 0
        self._write(effective.writing)
        return self._browse(effective.reading)

    def _write(self, writing: ViewConfiguration) -> None:
        key = place(self.ids.new(), writing.slice_window, writing.bucket_count)
        due = self.world.clock.elapsed() + self.randomness.random() * DEADLINE
        self.world.arriving.append((due, key.partition, key.enqueue_id))

    def _browse(self, reading: tuple[ViewConfiguration, ...]) -> int:
        seen = Counter(each for row in self.world.visible(reading).values() for each in row)
        wrong = sum(seen[identifier] != 1 for identifier in self.world.live())
        if self.randomness.random() < 0.6:
            self.world.deliver(sorted(seen)[: self.randomness.randrange(60)])
        self._advance(reading)
        return wrong

    def _advance(self, reading: tuple[ViewConfiguration, ...]) -> None:
        """Move browse start past slices that are over for every writer, and finished."""
        longest = max(each.slice_window for each in reading)
        open_from = slice_of(self.world.clock.now() - longest - GRACE, longest)
        left = [partition.slice_start for partition in self.world.visible(reading)]
        self.world.browse_start = max(self.world.browse_start, min([open_from, *left]))


def leased(
    world: MemoryWorld, history: MemoryHistory, lease: timedelta = LEASE
) -> LeasedConfiguration:
    return LeasedConfiguration(
        history,
        world.clock,
        SeededRandomness(0),
        lease=lease,
        longest_read_lease=LEASE,
        grace=GRACE,
    )


async def run(seed: int, *, protected: bool) -> int:
    """Run one world through all changes; return the observations that were wrong."""
    world, randomness = MemoryWorld(), random.Random(seed)
    await settle(world.history, CHANGES[0], at=START, by="test")

    async def started() -> Process:
        source = leased(world, world.history) if protected else Hasty(world.history)
        await source.refresh()
        return Process(world, randomness, source, world.clock.elapsed())

    processes = [await started() for _ in range(3)]
    changes = {randomness.randrange(60, 700): wanted for wanted in CHANGES[1:]}
    wrong = 0
    for second in range(1500):
        world.clock.jump(SECOND)
        world.arrive()
        if second in changes:
            await settle(world.history, changes[second], at=START, by="test")
        if randomness.random() < 0.01:
            processes[randomness.randrange(3)] = await started()
        for process in processes:
            wrong += await process.live()
    if protected:
        recorded = await world.history.load()
        newest = max(versions(recorded.events))
        assert recorded.rollout == Rollout(newest, newest), "the rollout came to its end"
    return wrong


@pytest.mark.parametrize("seed", [*range(5), 50, 56])
async def test_every_mail_is_browsed_and_counted_once_while_the_configuration_changes(
    seed: int,
) -> None:
    """Among these seeds are runs that lose mail when either wait of a rollout is left out."""
    assert await run(seed, protected=True) == 0


async def test_without_the_lease_mail_is_lost_from_sight() -> None:
    assert await run(0, protected=False) > 0


class TestLease:
    """What one process does with what it read."""

    @pytest.fixture
    def world(self) -> MemoryWorld:
        return MemoryWorld()

    @staticmethod
    def source(world: MemoryWorld, history: MemoryHistory | None = None) -> LeasedConfiguration:
        return leased(world, history or world.history)

    @staticmethod
    async def want(world: MemoryWorld, wanted: ViewConfiguration) -> None:
        await settle(world.history, wanted, at=START, by="test")

    async def test_nothing_is_known_before_the_first_read(self, world: MemoryWorld) -> None:
        with pytest.raises(ConfigurationStale):
            self.source(world).effective()

    async def test_a_queue_without_a_history_is_not_found(self, world: MemoryWorld) -> None:
        with pytest.raises(QueueNotFound):
            await self.source(world).refresh()

    async def test_what_was_read_is_used_for_one_lease_and_never_longer(
        self, world: MemoryWorld
    ) -> None:
        await self.want(world, CHANGES[0])
        source = self.source(world)
        await source.refresh()

        world.clock.jump(LEASE)
        assert source.effective() == Effective(CHANGES[0], (CHANGES[0],))
        world.clock.jump(SECOND)
        with pytest.raises(ConfigurationStale) as stale:
            source.effective()

        assert stale.value.transient
        await source.refresh()
        assert source.effective().writing == CHANGES[0]

    async def test_a_process_with_a_shorter_lease_waits_for_those_with_the_longest(
        self, world: MemoryWorld
    ) -> None:
        """As beside a release that uses its readings for longer."""
        old, new = CHANGES[:2]
        await self.want(world, old)
        source = leased(world, world.history, lease=LEASE / 2)
        await source.refresh()
        await self.want(world, new)
        await source.refresh()

        world.clock.jump(LEASE / 2 + SECOND)
        with pytest.raises(ConfigurationStale):
            source.effective()
        await source.refresh()
        assert source.effective() == Effective(old, (new, old))
        world.clock.jump(LEASE / 2 - SECOND)
        await source.refresh()
        assert source.effective() == Effective(new, (new, old))

    async def test_the_lease_counts_from_before_the_read(self, world: MemoryWorld) -> None:
        await self.want(world, CHANGES[0])
        world_of_slow_reads = world

        class Slow(MemoryHistory):
            async def load(self) -> Recorded:
                recorded = await world_of_slow_reads.history.load()
                world_of_slow_reads.clock.jump(LEASE)
                return recorded

        source = self.source(world, Slow())
        await source.refresh()

        world.clock.jump(SECOND)
        with pytest.raises(ConfigurationStale):
            source.effective()

    async def test_a_change_is_read_at_once_and_written_a_full_lease_later(
        self, world: MemoryWorld
    ) -> None:
        old, new = CHANGES[:2]
        await self.want(world, old)
        source = self.source(world)
        await source.refresh()
        await self.want(world, new)

        await source.refresh()
        assert source.effective() == Effective(old, (new, old))
        world.clock.jump(LEASE - SECOND)
        await source.refresh()
        assert source.effective() == Effective(old, (new, old))
        world.clock.jump(SECOND)
        await source.refresh()
        assert source.effective() == Effective(new, (new, old))

    async def test_the_old_configuration_is_read_until_no_old_row_can_come(
        self, world: MemoryWorld
    ) -> None:
        """The last old writer stops within a lease, its slice ends within a window, its row
        arrives within the grace period."""
        old, new = CHANGES[:2]
        await self.want(world, old)
        await self.want(world, new)
        source = self.source(world)
        await source.refresh()
        world.clock.jump(LEASE)
        await source.refresh()

        world.clock.jump(LEASE + old.slice_window + GRACE - SECOND)
        await source.refresh()
        assert source.effective().reading == (new, old)
        world.clock.jump(SECOND)
        await source.refresh()
        assert source.effective() == Effective(new, (new,))

    async def test_a_process_that_starts_later_acts_at_once_on_what_others_recorded(
        self, world: MemoryWorld
    ) -> None:
        old, new = CHANGES[:2]
        await self.want(world, old)
        await self.want(world, new)
        first, second = self.source(world), self.source(world)
        await first.refresh()
        world.clock.jump(LEASE)
        await first.refresh()

        await second.refresh()

        assert second.effective() == Effective(new, (new, old))

    async def test_a_process_that_starts_before_the_lease_is_over_writes_the_old_one(
        self, world: MemoryWorld
    ) -> None:
        old, new = CHANGES[:2]
        await self.want(world, old)
        await self.want(world, new)
        source = self.source(world)

        await source.refresh()

        assert source.effective() == Effective(old, (new, old))

    async def test_a_change_of_a_change_skips_what_was_never_written(
        self, world: MemoryWorld
    ) -> None:
        await self.want(world, CHANGES[0])
        source = self.source(world)
        await source.refresh()
        for wanted in CHANGES[1:4]:
            await self.want(world, wanted)
        await source.refresh()
        world.clock.jump(LEASE)

        await source.refresh()

        assert source.effective() == Effective(
            CHANGES[3], (CHANGES[3], CHANGES[2], CHANGES[1], CHANGES[0])
        )

    async def test_changes_faster_than_the_lease_do_not_keep_older_ones_from_use(
        self, world: MemoryWorld
    ) -> None:
        await self.want(world, CHANGES[0])
        source = self.source(world)
        for wanted in CHANGES[1:]:
            await self.want(world, wanted)
            await source.refresh()
            world.clock.jump(LEASE * 2 / 3)

        await source.refresh()

        assert source.effective().writing == CHANGES[3]

    async def test_a_history_that_was_replaced_under_a_running_process_is_not_followed(
        self, world: MemoryWorld
    ) -> None:
        await self.want(world, CHANGES[0])
        source = self.source(world)
        await source.refresh()
        await world.history.erase()
        await self.want(world, CHANGES[1])

        with pytest.raises(HistoryMissing):
            await source.refresh()

        assert source.effective().writing == CHANGES[0]

    async def test_a_history_that_was_adopted_under_a_running_process_is_followed(
        self, world: MemoryWorld
    ) -> None:
        await self.want(world, CHANGES[0])
        source = self.source(world)
        await source.refresh()
        await world.history.erase()
        await adopt(world.history, CHANGES[1], at=START, by="test", reason="the view was lost")

        await source.refresh()

        assert source.effective().writing == CHANGES[1]

    async def test_a_history_that_went_back_to_an_adoption_known_before_is_not_followed(
        self, world: MemoryWorld
    ) -> None:
        await adopt(world.history, CHANGES[0], at=START, by="test", reason="the view was lost")
        [adopted] = (await world.history.load()).events
        await self.want(world, CHANGES[1])
        source = self.source(world)
        await source.refresh()
        await world.history.erase()
        await world.history.append(adopted)

        with pytest.raises(HistoryMissing):
            await source.refresh()

    async def test_it_is_kept_fresh_in_the_background_until_it_is_closed(
        self, world: MemoryWorld
    ) -> None:
        await self.want(world, CHANGES[0])
        async with self.source(world) as source:
            await self.want(world, CHANGES[1])
            await world.clock.advance(2 * LEASE)
            assert source.effective().writing == CHANGES[1]

        await world.clock.advance(LEASE + SECOND)
        with pytest.raises(ConfigurationStale):
            source.effective()

    async def test_a_view_that_comes_back_within_the_lease_was_never_missed(
        self, world: MemoryWorld
    ) -> None:
        await self.want(world, CHANGES[0])
        faults = FaultInjector()
        async with self.source(world, MemoryHistory(world.history.records, faults)) as source:
            faults.plan = away("view")
            await world.clock.advance(LEASE)
            assert source.effective().writing == CHANGES[0]
            await world.clock.advance(LEASE)
            with pytest.raises(ConfigurationStale):
                source.effective()
            faults.plan = lambda step: None
            await world.clock.advance(LEASE / 3)

            assert source.effective().writing == CHANGES[0]

    async def test_a_view_that_comes_back_is_read_soon_after(self, world: MemoryWorld) -> None:
        """And not often while it is away."""
        await self.want(world, CHANGES[0])
        faults = FaultInjector()
        async with self.source(world, MemoryHistory(world.history.records, faults)) as source:
            faults.plan = away("view")
            read = len(faults.steps)
            await world.clock.advance(2 * LEASE)
            assert len(faults.steps) - read <= 2 * LEASE / SECOND
            faults.plan = lambda step: None
            await world.clock.advance(2 * SECOND)

            assert source.effective().writing == CHANGES[0]

    async def test_it_is_read_at_least_every_third_of_the_lease(self, world: MemoryWorld) -> None:
        await self.want(world, CHANGES[0])
        faults = FaultInjector()
        async with self.source(world, MemoryHistory(world.history.records, faults)):
            for _ in range(10):
                read = len(faults.steps)
                await world.clock.advance(LEASE / 3)
                assert len(faults.steps) > read
