"""A queue is erased in steps, from where the last one stopped, and costs nothing of its
neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from contract.view_contract import NO_TRAITS, RECORDS, entry, key
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.bootstrap.distributed import Unclaimed
from postroad.distributed.maintenance import erasure
from postroad.distributed.maintenance.erasure import Erasable, Erasure, ErasureStep, Part
from postroad.domain.configuration.history import ConfigurationChanged, ConfigurationCreated
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import Partition, slice_of
from postroad.domain.queues.names import QueueName, key_of_owner
from postroad.domain.queues.ownership import Owner
from postroad.errors import BlobsUnavailable, BucketNotOwned, HistoryMissing
from postroad.ports.view import ClosedSlice, DeadLetter, Limits
from support.memory.clock import START, ManualClock
from support.memory.fault_injection import (
    Fault,
    FaultInjector,
    Step,
    Stopped,
    at,
    away,
    no_fault,
)

HOUR, HALF = timedelta(hours=1), timedelta(minutes=30)
NAME, OTHER = QueueName("mail", "outgoing"), QueueName("mail", "neighbour")
BUCKET = "shared"
STEP = timedelta(seconds=2)
SLICES = 30
"""Hours that the queue has rows of."""


class Scene:
    """Two queues with mail, dead letters and bytes, which share a bucket."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.world = MemoryWorld(self.clock)
        self.first = slice_of(START, HOUR)
        self.faults = FaultInjector()

    def servers(self) -> MemoryServers:
        """Return the servers, as a process has them."""
        return MemoryServers(self.world, self.faults)

    async def fill(self, name: QueueName) -> None:
        """Store rows under two configurations, marks, dead letters, records and objects."""
        servers = self.servers()
        view, history = servers.views().view(str(name)), servers.history(name)
        wide, narrow = ViewConfiguration(HOUR, 2), ViewConfiguration(HALF, 3)
        created = ConfigurationCreated(sequence=1, at=START, version=1, configuration=wide)
        changed = ConfigurationChanged(
            sequence=2, at=START, version=2, configuration=narrow, changes=()
        )
        await history.append(created)
        await history.append(changed)
        await view.advance(browse_start=self.first, content_start=self.first)
        await servers.broker(name).declare()
        blobs = servers.blobs(BUCKET)
        await blobs.create()
        for number, partition in enumerate(self.partitions()):
            await view.insert(entry(number, partition))
            await view.mark_delivered(key(number, partition), START, NO_TRAITS)
            await view.record(UUID(int=number), tuple(RECORDS.values()))
            await blobs.put(f"{name}/{number}", b"x")
        await view.close_slice(ClosedSlice(self.first, HOUR, {0: 1}))
        dead_letter = DeadLetter(key(1).enqueue_id, "2026-01", START, "no", entry(900))
        await view.write_dead_letter(dead_letter)
        (incarnation,) = (await view.identity()).incarnations
        await blobs.put(key_of_owner(name), Owner(incarnation, None).encode(name))

    def partitions(self) -> Iterator[Partition]:
        """Yield a partition of each slice, the last buckets of both configurations among them."""
        for hour in range(SLICES):
            yield Partition(self.first + hour * HOUR, hour % 2)
            yield Partition(self.first + hour * HOUR + HALF, 2)

    def erasure(self) -> Erasure:
        servers = self.servers()
        queue = Erasable(
            name=NAME,
            broker=servers.broker(NAME),
            view=servers.views().view(str(NAME)),
            history=servers.history(NAME),
            blobs=servers.blobs(BUCKET),
            claims=Unclaimed(servers.blobs(BUCKET), owns=False),
        )
        return Erasure(queue, self.clock)

    async def census(self, name: QueueName) -> tuple[object, ...]:
        """Return what there is of a queue."""
        tables = self.world.tables(str(name))
        return (
            len(tables.rows),
            len(tables.marks),
            sum(1 for each in tables.records.values() if each),
            len(tables.dead_letters),
            len(tables.slices),
            tables.limits == Limits(None, None),
            len(self.world.records(str(name)).recorded.events),
            self.world.queues(str(name)).declared,
            sum(1 for each in self.world.bucket(BUCKET).objects if each.startswith(f"{name}/")),
        )


NOTHING = (0, 0, 0, 0, 0, True, 0, False, 0)


@pytest.fixture
async def scene() -> Scene:
    made = Scene()
    for name in (NAME, OTHER):
        await made.fill(name)
    made.clock.jump(SLICES * HOUR)
    made.faults = FaultInjector()
    return made


async def erase(scene: Scene) -> tuple[int, int]:
    """Erase step by step, each by another process; return the steps and the rows."""
    done: set[Part] = set()
    rows = 0
    for number in range(1, 1000):
        steps = await scene.erasure().proceed(done, STEP)
        done |= {part for part, each in steps.items() if each.is_done}
        rows += steps[Part.ROWS].count if Part.ROWS in steps else 0
        if done == set(Part):
            return number, rows
    raise AssertionError("the erasure does not end")


async def test_nothing_is_left_of_the_queue_and_all_of_its_neighbour(scene: Scene) -> None:
    before = await scene.census(OTHER)

    steps, rows = await erase(scene)

    assert (steps, rows) == (1, 2 * SLICES + 1)
    assert await scene.census(NAME) == NOTHING
    assert await scene.census(OTHER) == before


async def test_a_step_ends_after_its_time_and_the_next_goes_on(scene: Scene) -> None:
    """Each request takes a second."""

    async def slow(step: Step) -> None:
        scene.clock.jump(timedelta(seconds=1))

    scene.faults.before = slow
    steps, rows = await erase(scene)

    assert steps > 10
    assert rows == 2 * SLICES + 1
    assert await scene.census(NAME) == NOTHING
    erased = [each for each in scene.faults.steps if each.operation == "erase_rows"]
    assert len(erased) == 2 * SLICES
    assert len(scene.faults.steps) < 600, "no step begins at the first slice again"


async def test_a_process_that_dies_anywhere_costs_one_step() -> None:
    """The position of each request in turn."""
    position, ended = 0, False
    while not ended:
        for fault in (Fault.STOP_BEFORE, Fault.STOP_AFTER, Fault.AWAY, Fault.ANSWER_LOST):
            scene = Scene()
            await scene.fill(NAME)
            scene.clock.jump(SLICES * HOUR)
            scene.faults = FaultInjector(at(position, fault))
            with suppress(Stopped, BaseExceptionGroup):
                await scene.erasure().proceed((), STEP)
            ended = len(scene.faults.steps) <= position
            scene.faults = FaultInjector()

            await erase(scene)
            assert await scene.census(NAME) == NOTHING, (position, fault)
        position += 7


async def test_content_start_moves_with_the_slices_and_not_past_those_that_may_grow(
    scene: Scene,
) -> None:
    scene.faults.plan = away("blobs")
    steps = await scene.erasure().proceed((), STEP)
    assert steps[Part.ROWS].is_done

    limits = scene.world.tables(str(NAME)).limits
    assert limits.browse_start == limits.content_start
    assert limits.content_start is not None
    assert scene.first < limits.content_start <= scene.clock.now() - HOUR
    asked = len([each for each in scene.faults.steps if each.operation == "advance"])
    await scene.erasure().proceed((), STEP)
    assert len([each for each in scene.faults.steps if each.operation == "advance"]) <= asked + 1


async def test_a_server_that_is_away_blocks_its_part_and_the_history_alone(scene: Scene) -> None:
    scene.faults.plan = away("blobs")

    steps = await scene.erasure().proceed((), STEP)

    assert {part: each.is_done for part, each in steps.items()} == {
        Part.MESSAGES: True,
        Part.BYTES: False,
        Part.ROWS: True,
    }
    assert isinstance(steps[Part.BYTES].error, BlobsUnavailable)
    assert not scene.world.tables(str(NAME)).rows
    assert len(scene.world.records(str(NAME)).recorded.events) == 2

    scene.faults.plan = no_fault
    await erase(scene)
    assert await scene.census(NAME) == NOTHING


async def test_a_server_that_hangs_counts_as_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "MAX_REQUEST", 0.01)

    async def hang(step: Step) -> None:
        if step.server == "blobs":
            await asyncio.Event().wait()

    scene.faults.before = hang

    steps = await scene.erasure().proceed((), timedelta(0))

    assert not steps[Part.BYTES].is_done
    assert isinstance(steps[Part.BYTES].error, BlobsUnavailable)
    assert "S3 did not answer in time" in str(steps[Part.BYTES].error)


async def test_the_bytes_of_another_view_stay(scene: Scene) -> None:
    blobs = scene.servers().blobs(BUCKET)
    await blobs.put(key_of_owner(NAME), Owner(UUID(int=7), None).encode(NAME))

    steps = await scene.erasure().proceed((), STEP)

    assert isinstance(steps[Part.BYTES].error, BucketNotOwned)
    assert (await scene.census(NAME))[-1] == 2 * SLICES + 1


async def test_rows_without_a_history_are_not_guessed(scene: Scene) -> None:
    await scene.servers().history(NAME).erase()

    steps = await scene.erasure().proceed((), STEP)

    assert isinstance(steps[Part.ROWS].error, HistoryMissing)
    assert Part.HISTORY not in steps


async def test_a_queue_for_which_nothing_was_made_is_erased(scene: Scene) -> None:
    scene.world = MemoryWorld(scene.clock)

    steps = await scene.erasure().proceed((), STEP)

    assert steps == dict.fromkeys(Part, ErasureStep(True))


async def test_no_request_is_about_a_neighbour(scene: Scene) -> None:
    """As many requests as in a world where the queue is alone."""
    await erase(scene)
    beside = len(scene.faults.steps)

    alone = Scene()
    await alone.fill(NAME)
    alone.clock.jump(SLICES * HOUR)
    alone.faults = FaultInjector()
    await erase(alone)

    assert beside == len(alone.faults.steps)


async def test_a_mail_of_a_clock_that_is_ahead_is_erased(scene: Scene) -> None:
    ahead: datetime = scene.clock.now() + timedelta(seconds=50)
    view = scene.servers().views().view(str(NAME))
    await view.insert(entry(1, Partition(slice_of(ahead, HALF), 2)))

    await erase(scene)

    assert await scene.census(NAME) == NOTHING


async def test_no_part_is_erased_any_more_behind_an_unexpected_error(scene: Scene) -> None:
    async def before(step: Step) -> None:
        await asyncio.sleep(0)
        if step.server == "broker":
            raise RuntimeError

    scene.faults.before = before
    with pytest.raises(RuntimeError):
        await scene.erasure().proceed((), STEP)

    steps = len(scene.faults.steps)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(scene.faults.steps) == steps
