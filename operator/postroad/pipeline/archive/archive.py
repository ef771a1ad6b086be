"""Runs the archive: reads what may have changed, replaces it in the lake, then moves
`archived_through`, for which cleanup waits. One run at a time has the claim: two would each replace
what the other wrote.

The order makes a run that stopped anywhere harmless: what decides is read before what it decides
about, and each table is written before the one that says that it was.

The lake has a partition as it is once its slice is drained and its version is that of the last
reading. Before, a row may come that changes no version: a successor's whose replacement stopped.
Source: ADR 0037, 0047, 0073."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, NamedTuple, Protocol, Self, TypeVar
from uuid import UUID

from postroad.distributed.entries.live_slices import occupied
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import Partition
from postroad.domain.queues.lifetimes import longest_archive_wait
from postroad.domain.values.identifiers import EPOCH
from postroad.errors import ArchiveUnderWay, ServerError
from postroad.pipeline.archive import planning
from postroad.ports.clock import Clock
from postroad.ports.marks import PartitionVersion
from postroad.ports.view import ClosedSlice, Limits, View


class Run(NamedTuple):
    """One execution of a job. `counts`: what it read and wrote, by name."""

    run_id: UUID
    job: str
    began: datetime
    ended: datetime
    counts: Mapping[str, int]


CLAIM_ID = UUID(int=3)
"""Id that runs of the archive claim; no entry has this id."""

CLAIM = timedelta(minutes=10)
"""Time that a run that died keeps others away."""


ASKED_AGAIN = timedelta(seconds=15)
"""Interval at which a run that waits for another one asks whether it has ended."""


class ArchiveClaim:
    """The claim of one run, renewed until it ends. `patience`: its wait for one under way."""

    def __init__(
        self, view: View, clock: Clock, run_id: UUID, patience: timedelta = timedelta(0)
    ) -> None:
        self._patience = patience
        self._view = view
        self._clock = clock
        self._run_id = run_id
        self._renewing: asyncio.Task[None] | None = None
        self._lapses: timedelta | None = None

    async def __aenter__(self) -> Self:
        await self._take()
        self._renewing = asyncio.create_task(self._renew_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        try:
            await self._view.release_claim(CLAIM_ID, self._run_id)
        except ServerError:
            pass  # it lapses by itself

    async def _take(self) -> None:
        patient_until = self._clock.elapsed() + self._patience
        while True:
            try:
                return await self.renew()
            except ArchiveUnderWay:
                if self._clock.elapsed() >= patient_until:
                    raise
            await self._clock.sleep(ASKED_AGAIN)

    async def renew(self) -> None:
        """Have the claim for another ten minutes: called before each commit. One that lapsed while
        the process was suspended is lost, because another run may have begun, and ended, since.
        Raises: ArchiveUnderWay, ViewError."""
        now = self._clock.elapsed()
        if self._lapses is not None and now >= self._lapses:
            raise ArchiveUnderWay("this run was suspended for longer than its claim lasts")
        if not await self._view.claim(CLAIM_ID, self._run_id, CLAIM):
            raise ArchiveUnderWay("another run of the archive is under way")
        self._lapses = now + CLAIM

    async def _renew_on(self) -> None:
        while True:
            await self._clock.sleep(CLAIM / 5)
            try:
                await self.renew()
            except (ArchiveUnderWay, ServerError):
                pass  # the next commit raises it


E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)
Versions = Mapping[Partition, PartitionVersion]
Wanted = Callable[[datetime], bool]
"""True if the slice of this start is wanted."""

JOB = "archive"
"""The name of this job in the table of runs."""

TOGETHER = 32
"""Versions that are read at the same time."""


def every_slice(_: datetime) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class PartitionsRead(Generic[E]):
    """The entries of some partitions, and what was counted in each."""

    entries: E
    counts: Mapping[Partition, planning.ReadCounts]


class EntrySource(Protocol[E]):
    """Reads rows with their marks."""

    async def read(self, versions: Versions) -> PartitionsRead[E]:
        """Read these partitions; the watermark of the version holds for rows without a mark.
        Raises: ViewError."""


class Lake(Protocol[E_contra]):
    """The tables of an archive. Each method is one commit, and changes nothing when it fails."""

    async def slices(self, first: datetime) -> Mapping[Partition, planning.ArchivedPartition]:
        """Return what the lake has of each partition, from a slice start on."""

    async def gaps(self) -> tuple[planning.Gap, ...]: ...

    async def put_entries(self, entries: E_contra, partitions: Collection[Partition]) -> None:
        """Replace the entries of these partitions by those of them that are given; those of other
        partitions stay, in the lake and ungiven."""

    async def put_slices(self, archived: Iterable[planning.ArchivedPartition]) -> None:
        """Replace the lines of these partitions."""

    async def put_gaps(self, gaps: tuple[planning.Gap, ...]) -> None: ...

    async def put_run(self, run: Run) -> None: ...


class Archive(Generic[E]):
    """Archives one queue. `step`: the smallest slice window that the queue ever had. `row_lifetime`
    decides how long cleanup waits. `skew`: how far the clocks of writers may differ. `now`: the
    clock."""

    def __init__(
        self,
        view: View,
        source: EntrySource[E],
        lake: Lake[E],
        *,
        step: timedelta,
        row_lifetime: timedelta,
        skew: timedelta,
        now: Callable[[], datetime],
    ) -> None:
        self._view = view
        self._source = source
        self._lake = lake
        self._step = step
        self._skew = skew
        self._shortest_wait = longest_archive_wait(row_lifetime) - 3 * skew
        self._now = now

    async def run(self, run_id: UUID, wanted: Wanted = every_slice) -> Run:
        """Archive what can be of the slices that are wanted. Idempotent; any run may be stopped.
        One at a time: two would each replace what the other wrote. Raises: ViewError, and what the
        lake raises."""
        began = self._now()
        limits = await self._view.limits()
        first = limits.content_start or limits.browse_start
        if first is None:
            return Run(run_id, JOB, began, self._now(), {})
        closed = {each.slice_start: each async for each in self._view.closed_slices(first)}
        had = await self._lake.slices(min(first, limits.archived_through or first))
        asked = planning.to_ask((each for start, each in closed.items() if wanted(start)), had)
        versions = await read_versions(self._view, asked)
        found = {
            each: planning.without_reading(had.get(each), closed[each.slice_start], version)
            for each, version in versions.items()
        }
        have = {each: archived for each, archived in found.items() if archived is not None}
        changed = {each: version for each, version in versions.items() if each not in have}
        replaced = await self._replace(changed, closed, began)
        have |= replaced
        await self._lake.put_slices(have.values())
        have = {**had, **have}
        archived = limits.archived_through
        waits = archived is not None and began - archived < self._shortest_wait
        if gaps := planning.new_gaps(
            limits, closed.values(), have.values(), step=self._step, waits=waits
        ):
            await self._lake.put_gaps(planning.merged((*await self._lake.gaps(), *gaps)))
        counts = {"asked": len(asked), "read": len(changed), "gaps": len(gaps)}
        run = Run(run_id, JOB, began, self._now(), counts | _counted(replaced.values()))
        await self._lake.put_run(run)
        final = {each.partition for each in have.values() if each.is_final}
        through = planning.archived_through(limits, closed.values(), final)
        await self._view.advance(archived_through=through)
        return run

    async def _replace(
        self, changed: Versions, closed: Mapping[datetime, ClosedSlice], now: datetime
    ) -> dict[Partition, planning.ArchivedPartition]:
        """Read the changed partitions, and replace them in the lake but those that cleanup may have
        overtaken; return what the lake has of all of them."""
        if not changed:
            return {}
        read = await self._source.read(changed)
        limits = await self._view.limits()
        before = now - 3 * self._skew
        discarded = {
            each: planning.ArchivedPartition(each, version, closed[each.slice_start].window)
            for each, version in changed.items()
        }
        results = {
            each: planning.after_reading(
                had, closed[each.slice_start], read.counts[each], limits, before
            )
            for each, had in discarded.items()
        }
        kept = {each: result for each, result in results.items() if result is not None}
        await self._lake.put_entries(read.entries, kept.keys())
        return discarded | kept


async def read_versions(
    view: View, partitions: Sequence[Partition]
) -> dict[Partition, PartitionVersion]:
    """Read versions, some at a time: each is a small read. Raises: ViewError."""
    found: dict[Partition, PartitionVersion] = {}
    for place in range(0, len(partitions), TOGETHER):
        some = partitions[place : place + TOGETHER]
        found |= zip(some, await asyncio.gather(*map(view.version, some)), strict=True)
    return found


def _counted(replaced: Collection[planning.ArchivedPartition]) -> dict[str, int]:
    return {
        "rows": sum(each.rows for each in replaced),
        "undecodable": sum(each.undecodable for each in replaced),
        "discarded": sum(not each.rows for each in replaced),
    }


LEEWAY = timedelta(hours=1)
"""Difference by which the moment of an id and those of its entry may be apart; generous, since a
slice more costs little."""


async def unarchived(
    view: View,
    reading: Iterable[ViewConfiguration],
    archived: Mapping[Partition, planning.ArchivedPartition],
    first: datetime,
    last: datetime,
) -> Versions:
    """Return the partitions from `first` to `last` that have rows and may differ from what the lake
    has of them, with their versions. `archived`: what the lake has of each, read before. Raises:
    ViewError."""
    drained = {each.slice_start: each async for each in view.closed_slices(first) if each.drained}
    final = {partition for partition, had in archived.items() if had.is_final}
    found = [each async for each in occupied(view, reading, first, last) if each not in final]
    return {
        partition: version
        for partition, version in (await read_versions(view, found)).items()
        if (closed := drained.get(partition.slice_start)) is None
        or planning.without_reading(archived.get(partition), closed, version) is None
    }


def near(versions: Versions, stretch: planning.Stretch, window: timedelta) -> Versions:
    """Return partitions that may have entries of a stretch. `window`: their longest slice's."""
    first = max(stretch.first, EPOCH + LEEWAY + window) - LEEWAY - window
    return {
        partition: version
        for partition, version in versions.items()
        if first < partition.slice_start and partition.slice_start - LEEWAY < stretch.before
    }


def with_view(coverage: planning.Coverage, limits: Limits) -> planning.Coverage:
    """Return how far lake and view together cover a stretch that the lake covers so far: what
    cleanup deleted since the archive last read it is lacking still."""
    begun = limits.content_start
    lacking = tuple(
        planning.Gap(gap.first, min(gap.before, begun))
        for gap in coverage.lacking
        if begun is not None and gap.first < begun
    )
    return replace(coverage, lacking=lacking, as_of=None)
