"""The archive of an embedded queue: what its store recorded becomes lines of the lake, and the
segments that the store let go are deleted.

Each commit leaves a lake from which the same run, repeated, makes the same tables. A segment is
deleted only when the lake has all of it; one that is damaged is set aside. Source: ADR 0063."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from postroad.domain.queues.entries import slice_of
from postroad.domain.values.instants import instant, microseconds
from postroad.embedded.history import (
    LEEWAY,
    HistorySegment,
    StoreHistory,
    read_history,
    read_segment,
)
from postroad.embedded.log.layout import Layout
from postroad.embedded.log.options import MIB
from postroad.embedded.store.archive import DAMAGED, DroppedName, begin_at, read_archive
from postroad.pipeline.addresses import KeptAddress
from postroad.pipeline.archive import embedded_parts
from postroad.pipeline.archive.archive import JOB, Run
from postroad.pipeline.archive.planning import Gap, merged
from postroad.pipeline.spark.lake.store_lake import KnownTimes, StoreLake
from postroad.ports.clock import Clock
from postroad.ports.files import Files

TOGETHER = 32 * MIB
"""Bytes of segments that are read before a commit: Python takes some twenty times as much."""


@dataclass(frozen=True, slots=True)
class StoreRun:
    """A run over a store. `damaged`: segments not read whole; the archive's were set aside."""

    run: Run
    damaged: Sequence[str]


@dataclass(slots=True)
class _Reading:
    """Data that a run has read. `ends`: up to which offset, by the salts of segments; `parts`:
    those of each mail since the last commit; `gaps`: of which time something is lost."""

    ends: dict[str, int]
    parts: dict[str, list[embedded_parts.HistoryPart]] = field(
        default_factory=lambda: defaultdict(list)
    )
    damaged: list[HistorySegment] = field(default_factory=list)
    gaps: set[Gap] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

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
        return StoreRun(Run(run_id, JOB, began, clock.now(), {}), ())
    files.sync_directory(layout.archive)  # a file that the lake names no longer does not come back
    known, there = lake.read_segments(), {each.salt.hex() for each in found.segments}
    reading = _Reading({salt: end for salt, end in known.items() if salt in there})
    had, times = lake.gaps(), lake.times()
    rounds = list(_rounds([each for each in found.segments if not reading.has(each)]))
    for some in rounds:
        for each in some:
            _read(files, layout, each, kept, reading, found.through_us)
        _commit(lake, reading, found if some is rounds[-1] else None)
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
    if rounds or lake.gaps() != had:
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
    return StoreRun(run, [each.path.name for each in reading.damaged])


def _rounds(segments: Sequence[HistorySegment]) -> Iterator[list[HistorySegment]]:
    """Yield segments, as many together as are read before a commit."""
    some, size = list[HistorySegment](), 0
    for each in segments:
        if some and size + each.end > TOGETHER:
            yield some
            some, size = [], 0
        some.append(each)
        size += each.end
    if some:
        yield some


def _read(
    files: Files,
    layout: Layout,
    segment: HistorySegment,
    kept: KeptAddress,
    reading: _Reading,
    through_us: int,
) -> None:
    """Read what the lake lacks of a segment. What of it is damaged is lost, and its time a gap."""
    salt = segment.salt.hex()
    found = read_segment(files, layout, segment, reading.ends.get(salt, 0))
    if found is None:
        return
    unreadable = int(not found.is_whole)
    for part in (
        () if found.header is None else embedded_parts.parts_of(found.header, found.frames, kept)
    ):
        if part.kind == embedded_parts.PartKind.UNREADABLE:
            unreadable += 1
        else:
            reading.parts[part.mail_id].append(part)
    if not unreadable:
        reading.ends[salt] = segment.end
        return
    reading.counts["unreadable"] += unreadable
    reading.damaged.append(segment)
    before_us = through_us if segment.archived is None else segment.archived.obsolete_us
    reading.gaps.add(_gap(segment.since_us, before_us))


def _commit(lake: StoreLake, reading: _Reading, history: StoreHistory | None) -> None:
    """Put what was read into the lake. `history`: where all of it was read by now, so that what a
    mail lacks still is lost, unless the log has a part of it."""
    had = defaultdict(list)
    for part in lake.parts_of(reading.parts):
        had[part.mail_id].append(part)
    lines, left = list[tuple[Any, ...]](), list[embedded_parts.HistoryPart]()
    for mail_id, new in reading.parts.items():
        former = {line[2]: line for line in embedded_parts.lines_of(had[mail_id]).lines}
        parts = [*had[mail_id], *new]
        found = embedded_parts.lines_of(parts)
        changed = [line for line in found.lines if former.get(line[2]) != line]
        lines += changed
        reading.counts["entries"] += sum(line[2] not in former for line in changed)
        left += () if found.is_whole else parts
    reading.counts["changed"] += len(lines)
    if lines:
        lake.put_lines(lines)
    salts = None
    if history is not None:
        salts = {each.salt.hex() for each in history.segments if each.archived is None}
        left, lost = _living(left, salts)
        lost += lake.lost_parts(reading.parts, salts)
        reading.gaps |= {_gap(at, at + 1) for at in _lost_moments(lost)}
        _put_gaps(lake, reading.gaps)
    ends = (embedded_parts.segment_part(salt, end) for salt, end in reading.ends.items())
    lake.put_parts(reading.parts, [*left, *ends], salts)
    reading.parts.clear()


def _living(
    parts: Sequence[embedded_parts.HistoryPart], salts: Collection[str]
) -> tuple[list[embedded_parts.HistoryPart], list[embedded_parts.HistoryPart]]:
    """Return the parts of mails that these segments have a part of, and those of others."""
    mails = {each.mail_id for each in parts if each.salt in salts}
    living = [each for each in parts if each.mail_id in mails]
    return living, [each for each in parts if each.mail_id not in mails]


def _lost_moments(parts: Iterable[embedded_parts.HistoryPart]) -> Iterator[int]:
    mails = defaultdict(list)
    for each in parts:
        mails[each.mail_id].append(each)
    for same in mails.values():
        yield from embedded_parts.lost_moments(same)


def _put_gaps(lake: StoreLake, gaps: Collection[Gap]) -> None:
    before = lake.gaps()
    if (now := merged((*before, *gaps))) != before:
        lake.put_gaps(now)


def _gap(first_us: int, before_us: int) -> Gap:
    return Gap(slice_of(instant(first_us), embedded_parts.HOUR), instant(before_us))


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
