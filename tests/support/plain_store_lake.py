"""The lake of an embedded queue in memory: as `StoreLake`, and killed where a test wants it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from postroad.domain.queues.entries import slice_of
from postroad.domain.values.instants import instant
from postroad.pipeline.archive.archive import Run
from postroad.pipeline.archive.embedded_parts import (
    HistoryPart,
    HistoryReader,
    PartKind,
    segment_part,
)
from postroad.pipeline.archive.lake_files import KnownTimes
from postroad.pipeline.archive.planning import Gap
from postroad.pipeline.spark.lake.store_lake import SegmentFound
from support.plain_fold import Line, lines_of
from support.store_ledger import HOUR, Cells


class Killed(Exception):
    pass


class PlainStoreLake:
    """`commits`: those made so far; `left`: how many until the run is killed, behind the last."""

    def __init__(self) -> None:
        self.entries: dict[str, Line] = {}
        self.named: list[HistoryPart] = []
        self._taken: list[HistoryPart] = []
        self._left: list[list[HistoryPart]] = []
        self.missing: tuple[Gap, ...] = ()
        self.known: KnownTimes | None = None
        self.commits: list[str] = []
        self.left = -1

    def _commit(self, name: str) -> None:
        self.commits.append(name)
        self.left -= 1
        if self.left == 0:
            raise Killed

    def read_segments(self) -> dict[str, int]:
        return {
            each.salt: each.end for each in self.named if each.kind == PartKind.SEGMENT and each.end
        }

    def times(self) -> KnownTimes | None:
        return self.known

    def gaps(self) -> tuple[Gap, ...]:
        return self.missing

    def take(self, reader: HistoryReader) -> list[SegmentFound]:
        found = [each for number in range(len(reader.segments)) for each in reader.parts(number)]
        self._taken = [each for each in found if each.mail_id]
        counts = Counter(each.salt for each in found if each.kind == PartKind.UNREADABLE)
        ends = {each.salt: each.end for each in found if each.kind == PartKind.SEGMENT}
        return [SegmentFound(salt, ends.get(salt), counts[salt]) for salt in {*ends, *counts}]

    def _mails(self) -> dict[str, list[HistoryPart]]:
        found = defaultdict(list)
        for each in (*self.named, *self._taken):
            if each.mail_id:
                found[each.mail_id].append(each)
        return found

    def put_lines(self) -> dict[str, int]:
        mails, counts = self._mails(), Counter(entries=0, changed=0)
        for mail_id in {each.mail_id for each in self._taken}:
            for line in lines_of(mails[mail_id]).lines:
                had = self.entries.get(line["enqueue_id"])
                if had is None or (had != line and line["is_final"] >= had["is_final"]):
                    counts.update(entries=had is None, changed=1)
                    self.entries[line["enqueue_id"]] = line
        self._commit("put_lines")
        return dict(counts)

    def lost_hours(self, salts: Collection[str]) -> list[datetime]:
        mails = self._mails()
        self._left = [same for same in mails.values() if not lines_of(same).is_whole]
        found = set[datetime]()
        for same in self._left:
            if any(each.salt in salts for each in same):
                continue
            known = {each.entry_number for each in same if each.kind == PartKind.ENVELOPE}
            found |= {
                slice_of(instant(each.at or each.since), HOUR)
                for each in same
                if each.entry_number not in known
            }
        return sorted(found)

    def put_parts(self, salts: Collection[str], ends: Mapping[str, int]) -> None:
        living = [same for same in self._left if any(each.salt in salts for each in same)]
        segments = [segment_part(*each) for each in ends.items()]
        self.named = [*(each for same in living for each in same), *segments]
        self._commit("put_parts")

    def put_gaps(self, gaps: tuple[Gap, ...]) -> None:
        self.missing = gaps
        self._commit("put_gaps")

    def put_run(self, _: Run) -> None:
        self._commit("put_run")

    def put_times(self, times: KnownTimes) -> None:
        self.known = times
        self._commit("put_times")

    def lines(self) -> list[Line]:
        return list(self.entries.values())


def cells_of(lines: list[Line]) -> Cells:
    """What these lines say that happened, as `traffic` counts it."""
    cells: Cells = defaultdict(Counter)
    for line in lines:
        _count(line, cells)
    return cells


def _count(line: Line, cells: Cells) -> None:
    def add(at: Any, to: str, site: str, **counts: int) -> None:
        cells[slice_of(at, HOUR), line["sender_domain"], to, site].update(counts)

    by_domain = list(zip(line["domains"], line["domain_counts"], strict=True))
    if line["enqueued_at"] == line["accepted_at"]:
        for to, count in by_domain:
            add(line["accepted_at"], to, "", accepted=count)
    over, at = line["state"], line["delivered_at"] or line["ended_at"]
    if at is None:
        return
    if not line["outcomes"]:
        if over in ("delivered", "rejected", "removed"):
            for to, count in by_domain:
                add(at, to, "", **{over: count})
        return
    attempted, delivered = set[tuple[str, str]](), set[tuple[str, str]]()
    for each in line["outcomes"]:
        to, site, kind, count = each["domain"], each["site"], each["kind"], each["count"]
        name = "rejected" if kind == "failed" else kind
        add(at, to, site, **{name: count})
        if kind == "deferred" and over == "rejected":
            add(at, to, site, rejected=count)
        attempted.add((to, site))
        if kind == "delivered":
            delivered.add((to, site))
    for place in attempted:
        add(at, *place, attempts=1, bytes=line["size_bytes"] if place in delivered else 0)
