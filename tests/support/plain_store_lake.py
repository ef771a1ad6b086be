"""The lake of an embedded queue in memory: as `StoreLake`, and killed where a test wants it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from postroad.domain.queues.entries import slice_of
from postroad.pipeline.archive.archive import Run
from postroad.pipeline.archive.embedded_parts import HistoryPart, PartKind
from postroad.pipeline.archive.planning import Gap
from postroad.pipeline.spark.lake.schema import ENTRIES
from postroad.pipeline.spark.lake.store_lake import KnownTimes
from support.store_ledger import HOUR, Cells

Line = dict[str, Any]


class Killed(Exception):
    pass


class PlainStoreLake:
    """`commits`: those made so far; `left`: how many until the run is killed, behind the last."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[Any, ...]] = {}
        self.named: list[HistoryPart] = []
        self.missing: tuple[Gap, ...] = ()
        self.known: KnownTimes | None = None
        self.commits: list[str] = []
        self.left = -1

    def _commit(self, name: str) -> None:
        self.commits.append(name)
        self.left -= 1
        if self.left == 0:
            raise Killed

    def parts_of(self, mails: Collection[str]) -> list[HistoryPart]:
        return [each for each in self.named if each.mail_id in mails]

    def read_segments(self) -> dict[str, int]:
        found = (each for each in self.named if each.kind == PartKind.SEGMENT)
        return {each.salt: each.values["end"] for each in found}

    def times(self) -> KnownTimes | None:
        return self.known

    def gaps(self) -> tuple[Gap, ...]:
        return self.missing

    def _others(self, mails: Collection[str]) -> list[HistoryPart]:
        return [each for each in self.named if each.mail_id and each.mail_id not in mails]

    def lost_parts(self, mails: Collection[str], salts: Collection[str]) -> list[HistoryPart]:
        living = {each.mail_id for each in self._others(mails) if each.salt in salts}
        return [each for each in self._others(mails) if each.mail_id not in living]

    def put_lines(self, lines: Sequence[tuple[Any, ...]]) -> None:
        final = list(ENTRIES.columns).index("is_final")
        for line in lines:
            if line[final] or line[2] not in self.entries or not self.entries[line[2]][final]:
                self.entries[line[2]] = line
        self._commit("put_lines")

    def put_parts(
        self,
        mails: Collection[str],
        parts: Sequence[HistoryPart],
        salts: Collection[str] | None = None,
    ) -> None:
        lost = [] if salts is None else self.lost_parts(mails, salts)
        others = [each for each in self._others(mails) if each not in lost]
        self.named = [*others, *parts]
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
        return [dict(zip(ENTRIES.columns, each, strict=True)) for each in self.entries.values()]


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
    for to, site, kind, *_, count in line["outcomes"]:
        name = "rejected" if kind == "failed" else kind
        add(at, to, site, **{name: count})
        if kind == "deferred" and over == "rejected":
            add(at, to, site, rejected=count)
        attempted.add((to, site))
        if kind == "delivered":
            delivered.add((to, site))
    for place in attempted:
        add(at, *place, attempts=1, bytes=line["size_bytes"] if place in delivered else 0)
