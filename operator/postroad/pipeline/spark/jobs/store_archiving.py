"""The archive of an embedded queue: what its store recorded becomes lines of the lake, and the
segments that the store let go are deleted.

Each commit leaves a lake from which the same run, repeated, makes the same tables. A segment is
deleted only when the lake has all of it; one that is damaged is set aside. Source: ADR 0063."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from postroad.domain.queues.entries import slice_of
from postroad.domain.values.instants import instant, microseconds
from postroad.embedded.history import LEEWAY, HistorySegment, StoreHistory, read_history
from postroad.embedded.log.layout import Layout
from postroad.embedded.store.archive import DAMAGED, DroppedName, begin_at, read_archive
from postroad.pipeline.addresses import KeptAddress
from postroad.pipeline.archive.archive import JOB, Run
from postroad.pipeline.archive.embedded_parts import HOUR, HistoryReader
from postroad.pipeline.archive.lake_files import KnownTimes
from postroad.pipeline.archive.planning import Gap, merged
from postroad.pipeline.spark.lake.store_lake import SegmentFound, StoreLake
from postroad.ports.clock import Clock
from postroad.ports.files import Files


@dataclass(frozen=True, slots=True)
class StoreRun:
    """A run over a store. `damaged`: segments not read whole; the archive's were set aside.
    `ends`: up to which offset those of the log were read, by their salts."""

    run: Run
    damaged: Sequence[str]
    ends: Mapping[str, int]


class _Reading:
    """Data that a run has read. `ends`: up to which offset, by the salts of segments; `gaps`: of
    which time something is lost."""

    def __init__(self, ends: dict[str, int]) -> None:
        self.ends = ends
        self.damaged: list[HistorySegment] = []
        self.gaps: set[Gap] = set()
        self.counts: Counter[str] = Counter()

    def has(self, segment: HistorySegment) -> bool:
        """True if all of a segment was read, in this run or before."""
        return self.ends.get(segment.salt.hex(), 0) >= segment.end


def archive_history(
    lake: StoreLake, files: Files, layout: Layout, kept: KeptAddress, clock: Clock, run_id: UUID
) -> StoreRun:
    """Put what a store recorded into the lake, and delete what it let go. No other run may write
    the lake meanwhile. Raises: StoreDamaged, StoreFailed."""
    began = clock.now()
    found = read_history(files, layout, microseconds(began))
    if found is None:  # the archive was removed meanwhile
        return StoreRun(Run(run_id, JOB, began, clock.now(), {}), (), {})
    files.sync_directory(layout.archive)  # a file that the lake names no longer does not come back
    known, there = lake.read_segments(), {each.salt.hex() for each in found.segments}
    reading = _Reading({salt: end for salt, end in known.items() if salt in there})
    had, times = lake.gaps(), lake.times()
    new = [each for each in found.segments if not reading.has(each)]
    if new:
        asked = [(each, reading.ends.get(each.salt.hex(), 0)) for each in new]
        _note(lake.take(HistoryReader(files, layout, kept, asked)), found, reading)
        _commit(lake, found, reading)
    dropped = _dropped(files, layout)
    begun_us = microseconds(began + LEEWAY) if found.begun_us is None else found.begun_us
    through_us = max(begun_us, found.through_us)
    reading.gaps |= {_gap(*each) for each in dropped}
    if times is not None and begun_us > microseconds(times.through):
        reading.gaps.add(_gap(microseconds(times.through), begun_us))
    _put_gaps(lake, reading.gaps)
    whole = [each for each in found.segments if each.archived is not None and reading.has(each)]
    counts = {name: reading.counts[name] for name in ("entries", "changed", "unreadable")}
    counts |= {"segments": len(whole), "gaps": len(reading.gaps.difference(had))}
    run = Run(run_id, JOB, began, clock.now(), counts)
    if new or lake.gaps() != had:
        lake.put_run(run)
    begun = instant(begun_us) if times is None else times.begun
    now = KnownTimes(begun, max(instant(through_us), begun if times is None else times.through))
    if now != times:
        lake.put_times(now)
    if whole or found.begun_us is None:
        begin_at(files, layout, through_us)
    for each in reading.damaged:
        if each.archived is not None and each.path.name in files.names(layout.archive):
            files.rename(each.path, layout.archive / f"{each.path.name}{DAMAGED}")
    _delete(files, layout, [*(each.path.name for each in whole), *map(str, dropped)])
    log = {each.salt.hex() for each in found.segments if each.archived is None}
    ends = {salt: end for salt, end in reading.ends.items() if salt in log}
    return StoreRun(run, [each.path.name for each in reading.damaged], ends)


def _note(found: Iterable[SegmentFound], history: StoreHistory, reading: _Reading) -> None:
    """Note up to where segments were read. What of one is damaged is lost, and its time a gap."""
    segments = {each.salt.hex(): each for each in history.segments}
    for salt, end, unreadable in found:
        segment = segments[salt]
        if end is not None:
            reading.ends[salt] = end
            continue
        reading.counts["unreadable"] += unreadable
        reading.damaged.append(segment)
        archived = segment.archived
        before_us = history.through_us if archived is None else archived.obsolete_us
        reading.gaps.add(_gap(segment.since_us, before_us))


def _commit(lake: StoreLake, history: StoreHistory, reading: _Reading) -> None:
    """Put what was read into the lake. What a mail lacks still is lost, unless the log has a part
    of it."""
    reading.counts.update(lake.put_lines())
    salts = {each.salt.hex() for each in history.segments if each.archived is None}
    reading.gaps |= {Gap(at, at + HOUR) for at in lake.lost_hours(salts)}
    _put_gaps(lake, reading.gaps)
    lake.put_parts(salts, reading.ends)


def _put_gaps(lake: StoreLake, gaps: Collection[Gap]) -> None:
    before = lake.gaps()
    if (now := merged((*before, *gaps))) != before:
        lake.put_gaps(now)


def _gap(first_us: int, before_us: int) -> Gap:
    return Gap(slice_of(instant(first_us), HOUR), instant(before_us))


def _dropped(files: Files, layout: Layout) -> Sequence[DroppedName]:
    """Return what was dropped, during this run too."""
    archived = read_archive(files, layout)
    return () if archived is None else archived.dropped


def _delete(files: Files, layout: Layout, names: Sequence[str]) -> None:
    """Delete files of the archive; durable when it returns."""
    for name in names:
        files.unlink(layout.archive / name)
    with suppress(FileNotFoundError):
        files.sync_directory(layout.archive)
