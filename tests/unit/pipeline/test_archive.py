"""What the archive keeps is what the view had, however the run was stopped; what it could not keep
is named."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from datetime import timedelta
from uuid import UUID

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.view import MemoryView
from postroad.distributed.merge_join import with_marks
from postroad.domain.entries import Entry, UndecodableRow
from postroad.domain.selection import Selector
from postroad.domain.slices import EntryKey, Partition
from postroad.pipeline.archive import Archive, PartitionsRead, Stamps
from postroad.pipeline.planning import ArchivedPartition, Gap, ReadCounts
from postroad.pipeline.states import EntryState
from support.in_memory_cluster import WINDOW, InMemoryCluster, Process

Line = tuple[UUID, str]
"""The mail of an entry, and its state."""

Entries = dict[EntryKey, Line]
SKEW = timedelta(seconds=1)
NAMES = ("one", "two", "three")
NO_STOP = 10**9


class Stopped(Exception):
    """The archive was killed."""


class SourceOverView:
    """Reads through the view."""

    def __init__(self, view: MemoryView) -> None:
        self._view = view
        self.read_partitions: list[Partition] = []

    async def read(self, stamps: Stamps) -> PartitionsRead[Entries]:
        entries: Entries = {}
        counts = {}
        for partition, stamp in stamps.items():
            self.read_partitions.append(partition)
            counts[partition] = await self._partition(partition, entries, stamp)
        return PartitionsRead(entries, counts)

    async def _partition(self, partition: Partition, entries: Entries, stamp: object) -> ReadCounts:
        rows = live = unfinished = 0
        joined = with_marks(
            self._view,
            partition,
            self._view.rows(partition),
            id_of,
            stamp=stamp,  # type: ignore[arg-type]
        )
        async for row, mark in joined:
            rows += 1
            state = EntryState.of(mark)
            live += not state.is_final
            unfinished += mark is not None and mark.is_unfinished_replacement
            if isinstance(row, Entry):
                entries[row.key] = (row.mail_id, state.name)
        return ReadCounts(rows, live, unfinished)


def id_of(row: Entry | UndecodableRow) -> UUID:
    return row.enqueue_id


class MemoryLake:
    """A lake that can be stopped before each commit."""

    def __init__(self) -> None:
        self.entries: Entries = {}
        self.lines: dict[Partition, ArchivedPartition] = {}
        self.missing: tuple[Gap, ...] = ()
        self.commits_left = NO_STOP

    def _commit(self) -> None:
        if self.commits_left == 0:
            raise Stopped
        self.commits_left -= 1

    def slices(self) -> Mapping[Partition, ArchivedPartition]:
        return dict(self.lines)

    def gaps(self) -> tuple[Gap, ...]:
        return self.missing

    def put_entries(self, entries: Entries, partitions: Collection[Partition]) -> None:
        self._commit()
        others = {
            key: line for key, line in self.entries.items() if key.partition not in partitions
        }
        self.entries = others | {
            key: line for key, line in entries.items() if key.partition in partitions
        }

    def put_slices(self, archived: Iterable[ArchivedPartition]) -> None:
        self._commit()
        self.lines |= {each.partition: each for each in archived}

    def put_gaps(self, gaps: tuple[Gap, ...]) -> None:
        self._commit()
        self.missing = gaps

    @property
    def whole(self) -> Entries:
        """The entries of final partitions."""
        return {
            key: line for key, line in self.entries.items() if self.lines[key.partition].is_final
        }


class Story:
    """A queue with an archive, and all that its view ever had."""

    def __init__(self, cluster: InMemoryCluster, process: Process) -> None:
        self.cluster = cluster
        self.process = process
        view = process.queue._engine.view
        assert isinstance(view, MemoryView)
        self.source = SourceOverView(view)
        self.lake = MemoryLake()
        self.archive = Archive(
            view,
            self.source,
            self.lake,
            step=WINDOW,
            row_lifetime=cluster.tables.row_lifetime,
            skew=SKEW,
        )
        self.had: Entries = {}

    def note(self) -> None:
        tables = self.cluster.tables
        for key, entry in tables.rows.items():
            self.had[key] = (entry.mail_id, EntryState.of(tables.mark(key)).name)

    async def run(self) -> None:
        await self.archive.run(self.cluster.clock.now())

    async def try_to_archive(self, commits: int) -> None:
        """Archive until the run is stopped; one that is not has all closed slices as they are."""
        self.lake.commits_left = commits
        try:
            await self.run()
        except Stopped:
            return
        finally:
            self.lake.commits_left = NO_STOP
        self.note()
        tables = self.cluster.tables
        closed = {key for key in tables.rows if key.slice_start in tables.slices}
        assert {key: self.lake.entries[key] for key in closed} == {
            key: self.had[key] for key in closed
        }

    async def maintain(self, passing: timedelta = WINDOW) -> None:
        await self.cluster.pass_time(passing)
        self.note()
        await self.process.queue.maintain()
        self.note()

    async def finish(self, item_of: random.Random) -> None:
        """End the mails that are due, in one way or another."""
        consumer = Consumer(self.cluster, self.process.queue)
        while not await consumer.nothing(timedelta(seconds=5)):
            item = await consumer.next()
            ending = item_of.randrange(4)
            if ending == 0:
                await item.retry(timedelta(seconds=item_of.choice([1, 400])))
            elif ending == 1:
                await item.reject("no")
            else:
                await item.done()
        await consumer.close()
        self.note()


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    cluster = InMemoryCluster()
    yield cluster
    await cluster.close()


@pytest.fixture
async def story(cluster: InMemoryCluster) -> Story:
    return Story(cluster, await cluster.start())


async def happen(story: Story, chance: random.Random) -> None:
    """Let one thing happen to the queue, or to its archive."""
    deed = chance.randrange(10)
    if deed <= 2:
        name = chance.choice(NAMES)
        await story.cluster.enqueue(story.process, name, delay=chance.choice([0, 0, 600, 3600]))
    elif deed == 3:
        await story.finish(chance)
    elif deed == 4 and chance.random() < 0.2:
        await story.process.queue.purge()
    elif deed <= 5:
        await story.process.queue.remove(Selector(name=chance.choice(NAMES)))
    elif deed <= 7:
        await story.maintain()
    else:
        await story.try_to_archive(chance.choice([0, 1, 2, NO_STOP, NO_STOP]))
    story.note()


@pytest.mark.parametrize("seed", range(20))
async def test_the_lake_has_what_the_view_had(story: Story, seed: int) -> None:
    chance = random.Random(seed)
    await story.run()  # switches the archive on
    await story.cluster.enqueue(story.process, "first")
    for _ in range(80):
        await happen(story, chance)
    await story.process.queue.remove(Selector.all())
    for _ in range(12):
        await story.maintain()
        await story.run()

    assert story.lake.whole == story.had
    assert story.lake.missing == ()
    before = (dict(story.lake.entries), dict(story.lake.lines), len(story.source.read_partitions))
    await story.run()
    assert (story.lake.entries, story.lake.lines, len(story.source.read_partitions)) == before


async def lose_one(story: Story) -> EntryKey:
    """Let cleanup pass a slice that the archive never saw; return an entry of it."""
    await story.cluster.enqueue(story.process, "lost")
    await story.process.queue.remove(Selector.all())
    lost = max(story.cluster.tables.rows)
    for _ in range(64):
        await story.maintain(timedelta(hours=2))
    assert story.cluster.tables.rows == {}
    return lost


@pytest.mark.parametrize("commits", [0, 1, 2, NO_STOP])
async def test_an_archive_that_was_away_names_what_cleanup_passed(
    story: Story, commits: int
) -> None:
    await story.run()
    await story.cluster.enqueue(story.process, "kept")
    await story.finish(random.Random(1))
    for _ in range(3):
        await story.maintain()
        await story.run()
    kept, limits = dict(story.lake.whole), story.cluster.tables.limits

    lost = await lose_one(story)
    await story.try_to_archive(commits)
    await story.run()

    assert story.lake.whole == kept
    assert kept
    (gap,) = story.lake.missing
    assert gap.first == limits.archived_through
    assert gap.first <= lost.slice_start < gap.before
    limits = story.cluster.tables.limits
    assert limits.archived_through is not None
    assert limits.archived_through >= gap.before

    more = await lose_one(story)
    await story.run()
    assert [gap.first <= each.slice_start < gap.before for each in (lost, more)] == [True, False]
    assert any(each.first <= more.slice_start < each.before for each in story.lake.missing)
    assert gap.first == story.lake.missing[0].first


async def test_a_slice_that_cleanup_deletes_while_it_is_read_is_not_kept(story: Story) -> None:
    """Its entries stay as they were read before."""
    await story.cluster.enqueue(story.process, "mail")
    (key,) = story.cluster.tables.rows
    await story.maintain(2 * WINDOW)
    await story.run()
    assert story.lake.entries[key][1] == "waiting"
    await story.process.queue.remove(Selector.all())
    await story.maintain()
    story.cluster.tables.rows.clear()

    await story.run()

    assert story.lake.entries[key][1] == "waiting"
    assert story.lake.whole == {}
    assert story.cluster.tables.limits.archived_through == key.slice_start
