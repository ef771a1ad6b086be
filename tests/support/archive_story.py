"""A queue with an archive, and all that its view ever had: what the lake is compared with."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from contract.queue_harness import Consumer
from postroad.adapters.memory.view import MemoryView
from postroad.distributed.entries.live_slices import with_marks
from postroad.domain.queues.entries import Entry, EntryKey, Partition, UndecodableRow
from postroad.domain.queues.selection import Selector
from postroad.pipeline.archive.archive import Archive, Lake, PartitionsRead, Run, Versions
from postroad.pipeline.archive.planning import ArchivedPartition, Gap, ReadCounts
from postroad.pipeline.states import EntryState
from postroad.ports.marks import PartitionVersion
from support.entry_lines import EntryLine, entry_line
from support.in_memory_cluster import WINDOW, InMemoryCluster, Process

Entries = dict[EntryKey, EntryLine]
SKEW = timedelta(seconds=1)
NAMES = ("one", "two", "three")
NO_STOP = 10**9


class Stopped(Exception):
    """The archive was killed."""


def id_of(row: Entry | UndecodableRow) -> UUID:
    return row.enqueue_id


class SourceOverView:
    """Reads through the view."""

    def __init__(self, view: MemoryView) -> None:
        self._view = view
        self.read_partitions: list[Partition] = []

    async def read(self, versions: Versions) -> PartitionsRead[Entries]:
        entries: Entries = {}
        counts = {}
        for partition, version in versions.items():
            self.read_partitions.append(partition)
            counts[partition] = await self._partition(partition, entries, version)
        return PartitionsRead(entries, counts)

    async def _partition(
        self, partition: Partition, entries: Entries, version: PartitionVersion
    ) -> ReadCounts:
        rows = live = unfinished = 0
        lines = self._view.rows(partition)
        async for row, mark in with_marks(self._view, partition, lines, id_of, version=version):
            rows += 1
            live += not EntryState.of(mark).is_final
            unfinished += mark is not None and mark.is_unfinished_replacement
            if isinstance(row, Entry):
                entries[row.key] = entry_line(row, mark)
        return ReadCounts(rows, live, unfinished)


class MemoryLake:
    """A lake that can be stopped before each commit."""

    def __init__(self) -> None:
        self.entries: Entries = {}
        self.lines: dict[Partition, ArchivedPartition] = {}
        self.missing: tuple[Gap, ...] = ()
        self.runs: list[Run] = []
        self.commits_left = NO_STOP

    def _commit(self) -> None:
        if self.commits_left == 0:
            raise Stopped
        self.commits_left -= 1

    async def slices(self, first: datetime) -> Mapping[Partition, ArchivedPartition]:
        return {each: had for each, had in self.lines.items() if each.slice_start >= first}

    async def gaps(self) -> tuple[Gap, ...]:
        return self.missing

    async def put_entries(self, entries: Entries, partitions: Collection[Partition]) -> None:
        self._commit()
        others = {
            key: line for key, line in self.entries.items() if key.partition not in partitions
        }
        self.entries = others | {
            key: line for key, line in entries.items() if key.partition in partitions
        }

    async def put_slices(self, archived: Iterable[ArchivedPartition]) -> None:
        self._commit()
        self.lines |= {each.partition: each for each in archived}

    async def put_gaps(self, gaps: tuple[Gap, ...]) -> None:
        self._commit()
        self.missing = gaps

    async def put_run(self, run: Run) -> None:
        self._commit()
        self.runs.append(run)

    @property
    def whole(self) -> Entries:
        """The entries of final partitions."""
        return {
            key: line for key, line in self.entries.items() if self.lines[key.partition].is_final
        }


class Story:
    """A queue with an archive, and all that its view ever had. `lake`: another one than in
    memory, which gets what it is given."""

    def __init__(
        self, cluster: InMemoryCluster, process: Process, lake: Lake[Any] | None = None
    ) -> None:
        self.cluster = cluster
        self.process = process
        view = process.queue._engine.view
        assert isinstance(view, MemoryView)
        self.source = SourceOverView(view)
        self.lake = MemoryLake()
        self.archive: Archive[Any] = Archive(
            view,
            self.source,
            lake or self.lake,
            step=WINDOW,
            row_lifetime=cluster.tables.row_lifetime,
            skew=SKEW,
            now=cluster.clock.now,
        )
        self.had: Entries = {}

    def note(self) -> None:
        tables = self.cluster.tables
        for key, entry in tables.rows.items():
            self.had[key] = entry_line(entry, tables.mark(key))

    async def run(self) -> None:
        await self.archive.run(uuid4())

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

    async def drain(self, runs: int = 12) -> None:
        """Let everything end, and be archived by the last of these runs."""
        await self.process.queue.remove(Selector.all())
        for left in reversed(range(12)):
            await self.maintain()
            if left < runs:
                await self.run()


async def happen(story: Story, chance: random.Random, deeds: int = 10) -> None:
    """Let one thing happen to the queue or, as the ninth and tenth, to its archive."""
    deed = chance.randrange(deeds)
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
        await story.try_to_archive(chance.choice([0, 1, 2, 3, NO_STOP, NO_STOP]))
    story.note()
